export abstract class A<T> implements I {
  x: number = 1;
  abstract m(): void;
  over(a: string): void;
  over(a: any) {}
  private arrow = (a: T): T => a;
}
interface I {
  m(): void;
  readonly f: (x: number) => void;
  new (x: number): I;
  n: number;
}
type T1 = string;
declare const enum E { X }
namespace N {
  export function nf(): void {}
}
export function over(a: string): void;
