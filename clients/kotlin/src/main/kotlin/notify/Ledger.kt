package notify

/** Bounds the ids that are remembered to drop repeats: 16 in-flight windows. */
private const val SETTLED_MAX = 4096

/** Bounds the reason of a refusal: the engine takes no more. */
private const val REASON_CHARS = 1024

/** Splits "7-1042"; null where that is none. */
internal fun parseEventId(text: String?): Pair<String, Long>? {
    val at = text?.lastIndexOf('-') ?: return null
    val seq = text.substring(at + 1).toLongOrNull()
    return if (at < 1 || seq == null || seq < 0) null else text.substring(0, at) to seq
}

/**
 * What a client knows of its user's messages. It is pure: no clock, no I/O, no lock.
 *
 * A message is open from when it is shown until it is settled: acknowledged, refused, or handled on another device. A refusal settles when
 * the server confirms it; until then it is said again on every connection, and the cursor does not pass the message. An early copy has no
 * event id: it is acknowledged by id, and comes again in its place unless the server settled it.
 */
internal class Ledger(cursor: String?) {
    enum class Verdict { NEW, OPEN, SETTLED }

    /** Where a message was; the number 0: unknown. */
    private data class Place(val epoch: String, val seq: Long)

    private var epoch = ""
    private var floor = 0L // everything up to it is handled
    private var high = 0L // newest number shown or known to be gone
    private val open = HashMap<String, Message>() // shown and not settled
    private val former = HashSet<String>() // ids shown and not settled in former epochs; they may come again under other numbers
    private val settled = LinkedHashMap<String, Place>() // shown before, oldest first
    private val untold = HashMap<String, Long>() // settled, and the server was not told
    private val refused = HashMap<String, String>() // id -> reason, not confirmed
    private val unsaid = HashSet<String>() // of those, to be said on this connection

    init {
        parseEventId(cursor)?.let { (epoch, seq) -> restart(epoch, seq) }
    }

    /** What to present; null before anything is known. */
    val cursor: String? get() = if (epoch.isEmpty()) null else "$epoch-$floor"

    val handled: Long get() = floor

    /** Takes over where delivery starts. Open messages before it were handled on another device meanwhile. */
    fun welcome(epoch: String, gap: Boolean, from: Long) {
        val first = maxOf(from, 1)
        if (epoch != this.epoch) {
            former += open.keys
            open.clear() // numbers of another epoch mean nothing here
        }
        if (epoch != this.epoch || gap) restart(epoch, first - 1)
        unsaid.clear()
        unsaid += refused.keys
        high = maxOf(high, first - 1)
        revoke(open.values.filter { it.seq < first && it.id !in refused }.map { it.id })
    }

    fun receive(message: Message): Verdict {
        parseEventId(message.eventId)?.let { (epoch, _) -> if (epoch != this.epoch) welcome(epoch, false, message.seq) }
        if (!message.early) high = maxOf(high, message.seq) // an early copy moves no cursor
        val id = message.id
        if (id in refused) unsaid += id // it comes again because the server has not heard
        open[id]?.let { shown ->
            if (shown.early && !message.early) open[id] = message // its place is reached
            return Verdict.OPEN
        }
        if (id in refused) {
            open[id] = message
            return Verdict.OPEN
        }
        val before = settled[id]
        // The same id under another number is a new message. Numbers of another epoch cannot be compared.
        if (before != null && (before.seq == 0L || before.epoch != epoch || before.seq == message.seq)) {
            untold[id] = message.seq
            advance()
            return Verdict.SETTLED
        }
        open[id] = message
        return if (former.remove(id)) Verdict.OPEN else Verdict.NEW
    }

    /** Takes a message as handled. */
    fun settle(id: String) {
        if (id in refused) return
        open[id]?.let { untold[id] = it.seq }
        revoke(listOf(id))
    }

    fun refuse(id: String, reason: String) {
        if (id !in open && id !in former) return
        val chars = minOf(reason.codePointCount(0, reason.length), REASON_CHARS)
        refused[id] = reason.take(reason.offsetByCodePoints(0, chars))
        unsaid += id
    }

    /** Settles without a word of ours: a refusal confirmed, or handled on another device. */
    fun revoke(ids: Collection<String>) {
        for (id in ids) {
            refused -= id
            val kept = former.remove(id)
            val message = open.remove(id)
            if (message != null) settled[id] = Place(epoch, message.seq) else if (kept) settled.putIfAbsent(id, Place("", 0))
            if (settled.size > SETTLED_MAX) settled -= settled.keys.first()
        }
        advance()
    }

    /** Takes the numbers as gone. */
    fun gap(from: Long, to: Long) {
        open.values.removeIf { it.seq in from..to }
        high = maxOf(high, to)
        advance()
    }

    /** What the server must be told since the last call: all up to a number unless that is 0, and ids above it. */
    fun takeAcks(): Pair<Long, List<String>> {
        val (above, below) = untold.entries.partition { it.value > floor }
        val told = (if (below.isEmpty()) 0L else floor) to above.sortedBy { it.value }.map { it.key }
        untold.clear()
        return told
    }

    /** What the server must be told of refusals since the last call, or since welcome: id -> reason. */
    fun takeNacks(): Map<String, String> {
        val said = refused.filterKeys { it in unsaid }
        unsaid.clear()
        return said
    }

    private fun advance() {
        val before = open.values.filter { it.seq > 0 }.minOfOrNull { it.seq - 1 } ?: high
        floor = maxOf(floor, minOf(high, before)) // never back: what the server was told is told
    }

    private fun restart(epoch: String, seq: Long) {
        this.epoch = epoch
        high = seq
        floor = seq
        untold.clear()
    }
}
