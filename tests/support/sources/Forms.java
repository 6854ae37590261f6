package a;

@Foo(x = 1)
public class A<T> extends B implements I {
    A() {}
    @Override
    public <U> void m(int a) throws X { Runnable r = () -> {}; }
    enum E { X { void q() {} }; void e() {} }
    interface I { void im(); default int d() { return 1; } }
    record R(int a) { R { } }
    @interface An { int v() default 1; }
    static { init(); }
}
