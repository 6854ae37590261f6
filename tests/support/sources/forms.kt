package a

@Foo
data class A<T>(val x: T) : B() {
    companion object { fun of() = 1 }
    companion object Named
    enum class E { X }
    override suspend fun <T> foo(x: T): Int = 1
    val p: Int get() = 3
}
fun String.ext(): Int = 2
sealed interface S {
    fun m()
}
object O : S {
    fun `with blanks`() {}
}
typealias TA = Map<String, Int>
