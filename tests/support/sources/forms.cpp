namespace n {
class A final : public B {
 public:
  explicit A(int x);
  ~A() = default;
  operator const char*() const;
  bool operator<(const A& o) const { return true; }
  int (*callback)(int);
};
template <> int Box<int>::get(int x) { Local y(1); return 1; }
A::operator std::string() const { return {}; }
auto trailing(int x) -> int { auto l = [](int) { return 1; }; return l(x); }
using Alias = int;
}
class Forward;
