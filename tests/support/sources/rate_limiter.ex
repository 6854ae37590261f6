defmodule Gatekeeper.RateLimiter do
  @moduledoc """
  Counts requests per key in a sliding window.

  The window is kept in ETS; a process of its own sweeps what has expired.
  """

  use GenServer
  require Logger

  alias Gatekeeper.{Clock, Telemetry}

  @type key :: binary()
  @type verdict :: :allow | {:deny, non_neg_integer()}

  @callback limit_for(key) :: pos_integer()

  @sweep_every :timer.seconds(30)

  defstruct [:table, :window, limit: 100]

  defguard is_key(value) when is_binary(value) and byte_size(value) <= 256

  defguardp is_positive(value) when is_integer(value) and value > 0

  defmacro limited(key, do: block) do
    quote do
      case Gatekeeper.RateLimiter.check(unquote(key)) do
        :allow -> unquote(block)
        {:deny, wait} -> {:error, {:rate_limited, wait}}
      end
    end
  end

  @spec start_link(keyword()) :: GenServer.on_start()
  def start_link(options \\ []) do
    GenServer.start_link(__MODULE__, options, name: Keyword.get(options, :name, __MODULE__))
  end

  @spec check(key) :: verdict
  def check(key, limit \\ 100)

  def check(key, limit) when is_key(key) and is_positive(limit) do
    now = Clock.now()

    case count(key, now) do
      used when used < limit ->
        :ets.insert(__MODULE__, {{key, now}, 1})
        :allow

      _ ->
        Telemetry.denied(key)
        {:deny, retry_after(key, now)}
    end
  end

  def check(_key, _limit), do: {:deny, 0}

  defdelegate now, to: Clock

  def left <~> right, do: {left, right}

  @impl GenServer
  def init(options) do
    table = :ets.new(__MODULE__, [:named_table, :ordered_set, :public])
    Process.send_after(self(), :sweep, @sweep_every)
    {:ok, %__MODULE__{table: table, window: Keyword.get(options, :window, 60_000)}}
  end

  @impl GenServer
  def handle_info(:sweep, state) do
    deleted = sweep(state)
    if deleted > 0, do: Logger.debug("swept #{deleted} entries")
    Process.send_after(self(), :sweep, @sweep_every)
    {:noreply, state}
  end

  def handle_info(_message, state), do: {:noreply, state}

  defp count(key, now) do
    :ets.select_count(__MODULE__, [{{{key, :"$1"}, :_}, [{:>, :"$1", now - 60_000}], [true]}])
  end

  defp retry_after(key, now) do
    case :ets.next(__MODULE__, {key, 0}) do
      {^key, oldest} -> max(0, oldest + 60_000 - now)
      _ -> 0
    end
  end

  defp sweep(%__MODULE__{table: table, window: window}) do
    :ets.select_delete(table, [{{{:_, :"$1"}, :_}, [{:<, :"$1", Clock.now() - window}], [true]}])
  end

  defmodule Error do
    defexception [:message, :retry_after]

    @impl true
    def exception(wait), do: %__MODULE__{message: "too many requests", retry_after: wait}
  end
end

defprotocol Gatekeeper.Keyed do
  @doc "What requests are counted by."
  def key(request)
end

defimpl Gatekeeper.Keyed, for: Plug.Conn do
  def key(conn), do: conn.remote_ip |> :inet.ntoa() |> to_string()
end
