package weather.routing

import scala.collection.mutable
import scala.concurrent.{ExecutionContext, Future}
import scala.util.control.NonFatal

/** A request for a forecast, as it comes in. */
final case class Request(path: String, query: Map[String, String] = Map.empty) {
  def segments: List[String] = path.split('/').toList.filter(_.nonEmpty)

  def withQuery(name: String, value: String): Request =
    copy(query = query + (name -> value))
}

sealed trait Response {
  def status: Int
  def body: String
}

object Response {
  final case class Text(status: Int, body: String) extends Response

  case object NotFound extends Response {
    val status = 404
    val body = "no such place"
  }

  def ok(body: String): Response = Text(200, body)
}

trait Handler[F[_]] {
  type Failure

  def handle(request: Request): F[Response]

  def orElse(other: Handler[F]): Handler[F]
}

abstract class Middleware(val name: String) {
  protected def before(request: Request): Request = request

  protected def after(response: Response): Response

  final def around(inner: Request => Response): Request => Response = { request =>
    val started = System.nanoTime()
    try after(inner(before(request)))
    finally println(s"$name took ${System.nanoTime() - started} ns")
  }
}

class Router(implicit context: ExecutionContext) extends Handler[Future] {
  type Failure = Throwable

  private val routes = mutable.LinkedHashMap.empty[Pattern, Request => Future[Response]]

  def this(initial: Map[Pattern, Request => Future[Response]])(implicit context: ExecutionContext) = {
    this()
    routes ++= initial
  }

  def +=(route: (Pattern, Request => Future[Response])): this.type = {
    routes += route
    this
  }

  override def handle(request: Request): Future[Response] = {
    def matching(pattern: Pattern): Boolean = pattern.matches(request.segments)

    routes.collectFirst { case (pattern, run) if matching(pattern) => run(request) }
      .getOrElse(Future.successful(Response.NotFound))
      .recover { case NonFatal(error) => Response.Text(500, error.getMessage) }
  }

  override def orElse(other: Handler[Future]): Handler[Future] = new Handler[Future] {
    type Failure = Throwable

    def handle(request: Request): Future[Response] =
      Router.this.handle(request).flatMap {
        case Response.NotFound => other.handle(request)
        case found             => Future.successful(found)
      }

    def orElse(next: Handler[Future]): Handler[Future] = other.orElse(next)
  }
}

final class Pattern private (parts: List[Pattern.Part]) {
  import Pattern._

  def matches(segments: List[String]): Boolean = parts.length == segments.length &&
    parts.zip(segments).forall {
      case (Fixed(text), segment) => text == segment
      case (Any, _)               => true
    }
}

object Pattern {
  sealed trait Part
  final case class Fixed(text: String) extends Part
  case object Any extends Part

  def apply(text: String): Pattern =
    new Pattern(text.split('/').toList.filter(_.nonEmpty).map(part => if (part == "*") Any else Fixed(part)))

  implicit class PatternSyntax(private val context: StringContext) extends AnyVal {
    def route(args: String*): Pattern = Pattern(context.s(args: _*))
  }
}

enum Scale(val letter: Char):
  case Celsius extends Scale('C')
  case Fahrenheit extends Scale('F')

  def show(degrees: Double): String =
    f"$degrees%.1f °$letter"

extension (degrees: Double)
  def toFahrenheit: Double = degrees * 9 / 5 + 32

@main def serve(port: Int): Unit =
  val router = new Router()(using ExecutionContext.global)
  println(s"listening on $port with $router")
