@objc public class A<T>: B {
    init?(x: Int) {}
    deinit {}
    func foo<T>(_ x: T) -> Int { 1 }
    static func == (a: A, b: A) -> Bool { true }
    subscript(i: Int) -> Int { 1 }
    var v: Int { 3 }
}
struct S {}
protocol P {
    associatedtype T
    func m()
}
extension A: P where T: Q {
    func ext() {}
}
actor Ac {}
typealias TA = Int
indirect enum En { case x }
