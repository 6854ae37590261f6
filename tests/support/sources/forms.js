class A extends B {
  static #x = 1;
  constructor() { super(); }
  get g() {}
  async *m() {}
  #priv() {}
  field = () => 1;
  'quoted'() {}
}
function f() { function inner() {} }
const g = async x => x, h = (function named() {});
A.prototype.j = function () {};
module.exports.k = function l() {};
const o = { m1() {}, m2: function () {}, 'm 3': () => 1 };
on('x', function callback() {});
app['n'] = () => 1;
app[o] = () => 1;
function* gen() {}
const C = class D {};
export default function () {}
const { p = () => 1 } = o;
