{-# LANGUAGE GADTs #-}
{-# LANGUAGE TypeFamilies #-}

-- | Directed graphs with labels, and the walks that matter.
module Data.Graph.Labelled
  ( Graph
  , Node (..)
  , empty
  , insert
  , (|>)
  , shortest
  ) where

import Control.Monad (forM_, unless)
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import qualified Data.Set as Set

-- | A node is known by its number.
newtype Node = Node { number :: Int }
  deriving (Eq, Ord, Show)

data Edge label = Edge
  { source :: !Node
  , target :: !Node
  , label  :: label
  }

data Colour
  = White
  | Grey
  | Black
  deriving (Eq)

type Adjacency label = Map.Map Node [Edge label]

data Graph label where
  Graph :: Adjacency label -> Graph label

type family Weight a
type instance Weight Int = Int

class Monoid (Cost a) => Weighted a where
  type Cost a
  cost :: a -> Cost a
  cheaper :: a -> a -> Bool
  cheaper one other = weigh one < weigh other
  weigh :: a -> Int

instance Functor Graph where
  fmap f (Graph nodes) = Graph (Map.map (map relabel) nodes)
    where
      relabel edge = edge { label = f (label edge) }

instance Show (Graph label) where
  show graph = "Graph with " ++ show (size graph) ++ " edges"

empty :: Graph label
empty = Graph Map.empty

insert :: Edge label -> Graph label -> Graph label
insert edge (Graph nodes) =
  Graph (Map.insertWith (++) (source edge) [edge] nodes)

infixl 5 |>

(|>) :: Graph label -> Edge label -> Graph label
graph |> edge = insert edge graph

size :: Graph label -> Int
size (Graph nodes) = sum (map length (Map.elems nodes))

successors :: Node -> Graph label -> [Node]
successors node (Graph nodes) =
  map target (fromMaybe [] (Map.lookup node nodes))

shortest :: Node -> Node -> Graph label -> Maybe [Node]
shortest from to graph = go (Set.singleton from) [[from]]
  where
    go _ [] = Nothing
    go _ ([] : _) = Nothing
    go seen (path@(node : _) : rest)
      | node == to = Just (reverse path)
      | otherwise =
          let fresh = filter (`Set.notMember` seen) (successors node graph)
              marked = foldr Set.insert seen fresh
          in go marked (rest ++ map (: path) fresh)

colourOf :: Int -> Colour
colourOf 0 = White
colourOf 1 = Grey
colourOf _ = Black

node `reaches` other = \graph ->
  maybe False (const True) (shortest node other graph)

printAll :: Show label => Graph label -> IO ()
printAll graph@(Graph nodes) = do
  putStrLn (show graph)
  forM_ (Map.toList nodes) $ \(node, edges) ->
    unless (null edges) $
      putStrLn (show (number node) ++ ": " ++ show (length edges))

main :: IO ()
main = printAll (empty |> Edge (Node 1) (Node 2) "road")
