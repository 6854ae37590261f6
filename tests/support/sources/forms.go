package a

type S struct {
	f func(int) error
}

type I interface {
	M(x int) error
	Embedded
}

type (
	A = int
	B []S
	G[T any] struct{ x T }
)

func (s *S) Meth(a int) (n int, err error) {
	f := func() {}
	f()
	return
}

func Top[T any](x T) {}
