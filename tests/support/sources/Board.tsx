import React, { createContext, useCallback, useContext, useMemo, useReducer } from 'react';
import type { PropsWithChildren, ReactNode } from 'react';

export interface Card {
  readonly id: string;
  title: string;
  labels: string[];
  onOpen?: (card: Card) => void;
  describe(): string;
}

export type Column = 'todo' | 'doing' | 'done';

type Action =
  | { kind: 'move'; card: Card; to: Column }
  | { kind: 'remove'; id: string };

export enum Density {
  Compact = 'compact',
  Comfortable = 'comfortable',
}

interface BoardState {
  columns: Record<Column, Card[]>;
  density: Density;
}

const EMPTY: BoardState = { columns: { todo: [], doing: [], done: [] }, density: Density.Comfortable };

const BoardContext = createContext<[BoardState, React.Dispatch<Action>]>([EMPTY, () => undefined]);

function without(cards: Card[], id: string): Card[] {
  return cards.filter((card) => card.id !== id);
}

function reduce(state: BoardState, action: Action): BoardState {
  switch (action.kind) {
    case 'move': {
      const cleared = reduce(state, { kind: 'remove', id: action.card.id });
      return { ...cleared, columns: { ...cleared.columns, [action.to]: [...cleared.columns[action.to], action.card] } };
    }
    case 'remove': {
      const columns = Object.fromEntries(
        Object.entries(state.columns).map(([name, cards]) => [name, without(cards, action.id)]),
      ) as BoardState['columns'];
      return { ...state, columns };
    }
  }
}

export const useBoard = () => useContext(BoardContext);

export function BoardProvider({ children }: PropsWithChildren) {
  const value = useReducer(reduce, EMPTY);
  return <BoardContext.Provider value={value}>{children}</BoardContext.Provider>;
}

const CardView: React.FC<{ card: Card; column: Column }> = ({ card, column }) => {
  const [, dispatch] = useBoard();
  const finish = useCallback(() => dispatch({ kind: 'move', card, to: 'done' }), [card, dispatch]);
  const handleKey = (event: React.KeyboardEvent) => {
    if (event.key === 'Delete') {
      dispatch({ kind: 'remove', id: card.id });
    }
  };
  return (
    <article tabIndex={0} onKeyDown={handleKey} data-column={column}>
      <h3>{card.title}</h3>
      {card.labels.map((label) => (
        <span key={label}>{label}</span>
      ))}
      {column !== 'done' && <button onClick={finish}>Done</button>}
    </article>
  );
};

export const ColumnView = React.memo(function ColumnView({ name }: { name: Column }) {
  const [state] = useBoard();
  const cards = useMemo(() => state.columns[name], [state, name]);
  return (
    <section>
      <h2>{`${name} (${cards.length})`}</h2>
      {cards.map((card) => (
        <CardView key={card.id} card={card} column={name} />
      ))}
    </section>
  );
});

export class ErrorBoundary extends React.Component<PropsWithChildren, { failed: boolean }> {
  state = { failed: false };

  static getDerivedStateFromError() {
    return { failed: true };
  }

  componentDidCatch(error: Error): void {
    this.report(error);
  }

  private report = (error: Error) => {
    console.error(error);
  };

  get fallback(): ReactNode {
    return <p role="alert">Something went wrong.</p>;
  }

  render() {
    return this.state.failed ? this.fallback : this.props.children;
  }
}

export default function Board() {
  const columns: Column[] = ['todo', 'doing', 'done'];
  return (
    <ErrorBoundary>
      <BoardProvider>
        {columns.map((name) => (
          <ColumnView key={name} name={name} />
        ))}
      </BoardProvider>
    </ErrorBoundary>
  );
}
