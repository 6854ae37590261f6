<?php
namespace A;
abstract class B extends C implements D {
    use T;
    public function __construct(private int $a) {}
    public static function &m(): ?int { $f = fn($x) => $x; return 1; }
    abstract protected function abs();
}
interface I { public function im(); }
trait T { function tm() {} }
enum E: string { case X = 'x'; function em() {} }
function top() {}
