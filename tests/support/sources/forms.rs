pub struct S<T> { a: T }
pub enum E { A }
union U { a: u8 }
pub trait Tr {
    type Item;
    fn m(&self);
    fn d(&self) {}
}
impl<T> Tr for S<T> {
    type Item = u8;
    fn m(&self) {}
}
impl<'a> Tr for &'a a::E {
    fn m(&self) {}
}
type Alias = u8;
mod m { pub(crate) async fn f() {} }
macro_rules! mac { () => {} }
cfg_net! {
    pub struct Hidden;
    impl Hidden {
        pub fn shown() { println!("fn not_this"); }
    }
}
extern "C" { fn c_abs(x: i32) -> i32; }
