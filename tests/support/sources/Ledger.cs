using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;

namespace Bookkeeping.Core;

/// <summary>A double entry: what leaves one account arrives in another.</summary>
public enum EntryKind
{
    Debit,
    Credit,
    Reversal,
}

public delegate void BalanceChanged(Account account, decimal before, decimal after);

public readonly struct Money : IEquatable<Money>
{
    private readonly decimal _amount;

    public Money(decimal amount, string currency)
    {
        if (string.IsNullOrWhiteSpace(currency))
            throw new ArgumentException("A currency is needed", nameof(currency));
        _amount = Math.Round(amount, 2, MidpointRounding.ToEven);
        Currency = currency.ToUpperInvariant();
    }

    public string Currency { get; }

    public bool Equals(Money other) => _amount == other._amount && Currency == other.Currency;

    public override int GetHashCode() => HashCode.Combine(_amount, Currency);

    public static Money operator +(Money left, Money right)
    {
        EnsureSameCurrency(left, right);
        return new Money(left._amount + right._amount, left.Currency);
    }

    private static void EnsureSameCurrency(Money left, Money right)
    {
        if (left.Currency != right.Currency)
            throw new InvalidOperationException($"{left.Currency} is not {right.Currency}");
    }
}

public record Entry(Guid Id, EntryKind Kind, Money Amount, DateTimeOffset At)
{
    public Entry Reversed() => this with { Id = Guid.NewGuid(), Kind = EntryKind.Reversal };
}

public record struct PageToken(int Offset, int Limit);

public interface ILedgerStore
{
    Task<IReadOnlyList<Entry>> ReadAsync(Guid account, PageToken page, CancellationToken cancellation = default);

    Task AppendAsync(Guid account, IEnumerable<Entry> entries, CancellationToken cancellation = default);
}

public abstract class Account
{
    private readonly List<Entry> _entries = new();

    protected Account(Guid id, string name)
    {
        Id = id;
        Name = name;
    }

    ~Account()
    {
        _entries.Clear();
    }

    public event BalanceChanged? Changed;

    public Guid Id { get; }

    public string Name { get; private set; }

    public Entry this[int index] => _entries[index];

    public abstract decimal Balance();

    public virtual void Post(Entry entry)
    {
        var before = Balance();
        _entries.Add(entry);
        Changed?.Invoke(this, before, Balance());
    }

    protected IEnumerable<Entry> Newest(int count)
    {
        return _entries.OrderByDescending(e => e.At).Take(count).Where(IsVisible);

        static bool IsVisible(Entry entry) => entry.Kind != EntryKind.Reversal;
    }
}

public sealed partial class CachedLedger<TStore> : ILedgerStore
    where TStore : ILedgerStore, new()
{
    private readonly Dictionary<Guid, IReadOnlyList<Entry>> _pages = new();

    public async Task<IReadOnlyList<Entry>> ReadAsync(Guid account, PageToken page, CancellationToken cancellation)
    {
        if (_pages.TryGetValue(account, out var known))
            return known;
        var read = await new TStore().ReadAsync(account, page, cancellation).ConfigureAwait(false);
        _pages[account] = read;
        return read;
    }

    async Task ILedgerStore.AppendAsync(Guid account, IEnumerable<Entry> entries, CancellationToken cancellation)
    {
        _pages.Remove(account);
        await new TStore().AppendAsync(account, entries, cancellation).ConfigureAwait(false);
    }

    private static class Limits
    {
        public const int MaxPages = 128;

        public static bool Exceeded(int pages) => pages > MaxPages;
    }
}

internal static class EntryExtensions
{
    public static decimal Signed(this Entry entry, Func<Money, decimal> convert)
    {
        return entry.Kind switch
        {
            EntryKind.Debit => -convert(entry.Amount),
            _ => convert(entry.Amount),
        };
    }
}
