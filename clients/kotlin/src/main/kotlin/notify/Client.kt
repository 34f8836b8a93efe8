package notify

import java.io.IOException
import java.util.UUID
import kotlin.random.Random
import kotlin.time.Duration
import kotlin.time.Duration.Companion.milliseconds
import kotlin.time.Duration.Companion.seconds
import kotlin.time.TimeSource
import kotlin.time.toJavaDuration
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.delay
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.isActive
import kotlinx.coroutines.launch
import kotlinx.coroutines.runInterruptible
import kotlinx.coroutines.withContext
import kotlinx.coroutines.withTimeoutOrNull
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.double
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import kotlinx.serialization.json.put
import okhttp3.HttpUrl.Companion.toHttpUrl
import okhttp3.OkHttpClient
import okhttp3.Request
import okhttp3.Response
import okhttp3.WebSocket
import okhttp3.WebSocketListener

private val REQUEST_TIME = 10.seconds
internal var tokenTime: Duration = 30.seconds // of one call of `token`
private const val ACKED_IDS = 100 // in one frame: it has 64 KiB at most, and an id 128 characters
private const val REFUSALS_MAX = 2 // of a token, one after another: the first one is followed by another attempt at once
private const val RETRY_AFTER_MAX = 86400.0 // seconds
private const val TOKEN_EXPIRED = 4401 // close codes
private const val FORBIDDEN = 4403
private const val TOO_MANY = 4409 // connections of this user
private const val NORMAL_CLOSURE = 1000

/** The engine refuses this client for good. */
public class Stopped(reason: String) : IOException(reason)

private class TokenRefused(reason: String) : IOException(reason)

/**
 * One user's connection. It keeps itself connected, and shows each message once, in order. A message is acknowledged by [Message.ack], and
 * until then the engine keeps it and sends it again. The interface is docs/PROTOCOL-RECEIVING.md.
 *
 * @param url of the engine: http://127.0.0.1:8000
 * @param token asked before every connection; cancelled after 30 s
 * @param onMessage called for each message, one after another, by [run]
 * @param onDisconnect why a connection ended, or could not be made
 * @param onGap these numbers are gone; 0 and 0: the engine does not know which
 * @param cursor where to begin; null for the oldest pending message
 * @param device name of this device
 */
public class Client(
    private val url: String,
    private val token: suspend () -> String,
    private val onMessage: (Message) -> Unit,
    private val onDisconnect: (Exception) -> Unit = {},
    private val onGap: (from: Long, to: Long) -> Unit = { _, _ -> },
    cursor: String? = null,
    private val device: String? = null,
) {
    /** What the engine asks for. */
    private class Pace(val heartbeat: Duration, val timeout: Duration, val delays: List<Duration>, val jitter: Double) {
        fun varied(delay: Duration): Duration = delay * (1 + jitter * (2 * Random.nextDouble() - 1))

        fun after(welcome: JsonObject): Pace {
            val reconnect = welcome["reconnect"]?.jsonObject
            val given = reconnect?.get("delays_ms")?.jsonArray?.map { it.jsonPrimitive.long.milliseconds }
            return Pace(
                welcome.number("heartbeat_ms")?.milliseconds ?: heartbeat,
                welcome.number("timeout_ms")?.milliseconds ?: timeout,
                if (given.isNullOrEmpty()) delays else given,
                reconnect?.get("jitter")?.jsonPrimitive?.double ?: jitter,
            )
        }
    }

    private class Ended(val welcomed: TimeSource.Monotonic.ValueTimeMark?, val after: Duration?, val reason: Exception)

    private sealed interface Event {
        class Text(val text: String) : Event
        class End(val reason: Exception, val after: Duration? = null) : Event
    }

    private val http = OkHttpClient.Builder()
        .connectTimeout(REQUEST_TIME.toJavaDuration())
        .readTimeout(REQUEST_TIME.toJavaDuration())
        .build()
    private val name = UUID.randomUUID().toString() // of the heartbeat probes
    private val ledger = Ledger(cursor)
    private val changed = Channel<Unit>(Channel.CONFLATED) // something is to be said
    private var pace = Pace(30.seconds, 60.seconds, listOf(1.seconds, 2.seconds, 5.seconds, 10.seconds), 0.3)

    /** The cursor: everything up to it is handled. An application may keep it for its next start. */
    public val lastEventId: String? get() = synchronized(ledger) { ledger.cursor }

    /**
     * Connects, and again after every failure, until it is cancelled or [onMessage] throws. The engine is told first what was acknowledged.
     *
     * @throws Stopped the engine refuses this client for good
     */
    public suspend fun run(): Unit = coroutineScope {
        var failures = 0
        var refusals = 0 // of the token, since a connection was welcomed
        var probing: Job? = null
        while (true) {
            val ended = connect { probing?.cancel() }
            if (ended.welcomed != null) refusals = 0
            if (ended.reason is TokenRefused) refusals += 1
            val reason = if (refusals > REFUSALS_MAX) Stopped("the token is refused: ${ended.reason.message}") else ended.reason
            onDisconnect(reason)
            if (reason is Stopped) {
                probing?.cancel()
                throw reason
            }
            if (ended.welcomed != null) {
                // Not before: a server that ends each connection at once is tried less and less often.
                if (ended.welcomed.elapsedNow() >= pace.delays.last()) failures = 0
                probing = launch { probe(pace) }
            }
            val backoff = pace.varied(pace.delays[minOf(failures, pace.delays.size - 1)])
            delay(ended.after ?: if (reason is TokenRefused && refusals == 1) Duration.ZERO else backoff) // another token may do
            failures += 1
        }
        @Suppress("UNREACHABLE_CODE") Unit
    }

    /** Changes the ledger, and says what it asks for. */
    internal fun <T> change(apply: (Ledger) -> T): T = synchronized(ledger) { apply(ledger) }.also { changed.trySend(Unit) }

    /** Serves one connection until it ends. */
    private suspend fun connect(onWelcome: () -> Unit): Ended = coroutineScope {
        val bearer = try {
            bearer()
        } catch (error: Exception) { // whatever an HTTP client throws, its time limit too: the issuer of tokens may be back soon
            ensureActive()
            return@coroutineScope Ended(null, null, error)
        }
        val events = Channel<Event>(Channel.UNLIMITED) // the engine sends a window ahead of the acknowledgements, not more
        val socket = http.newWebSocket(request(bearer), Listener(events))
        var welcomed: TimeSource.Monotonic.ValueTimeMark? = null
        var back: TimeSource.Monotonic.ValueTimeMark? = null // as a drain said
        fun after(): Duration? = back?.let { maxOf(-it.elapsedNow(), Duration.ZERO) }
        var saying: Job? = null
        try {
            while (true) {
                val event = withTimeoutOrNull(pace.timeout) { events.receive() }
                    ?: return@coroutineScope Ended(welcomed, after(), IOException("the engine is silent"))
                if (event is Event.End) return@coroutineScope Ended(welcomed, event.after ?: after(), event.reason)
                val frame = try {
                    Json.parseToJsonElement((event as Event.Text).text).jsonObject
                } catch (error: IllegalArgumentException) {
                    return@coroutineScope Ended(welcomed, after(), IOException("a frame is not valid", error))
                }
                val type = frame["type"]?.jsonPrimitive?.content
                handle(type, frame)
                if (type == "drain") back = frame.number("after_ms")?.let { TimeSource.Monotonic.markNow() + it.milliseconds }
                if (type == "welcome") {
                    pace = pace.after(frame)
                    welcomed = TimeSource.Monotonic.markNow()
                    onWelcome()
                    saying = launch { say(socket, pace.heartbeat) }
                }
            }
            @Suppress("UNREACHABLE_CODE") Ended(welcomed, after(), IOException())
        } catch (ended: Exception) { // cancelled, or onMessage has failed
            withContext(NonCancellable) {
                saying?.cancelAndJoin()
                if (welcomed != null) due().forEach { socket.send(it.toString()) }
                socket.close(NORMAL_CLOSURE, null)
                withTimeoutOrNull(REQUEST_TIME) { while (events.receive() !is Event.End) Unit }
            }
            throw ended
        } finally {
            saying?.cancel() // or it would take what the next connection has to say
            socket.cancel()
        }
    }

    private suspend fun bearer(): String =
        withTimeoutOrNull(tokenTime) { token() } ?: throw IOException("token() has given no token within $tokenTime")

    private fun request(bearer: String): Request {
        val query = url.toHttpUrl().newBuilder().addPathSegments("v1/ws")
        lastEventId?.let { query.addQueryParameter("last_event_id", it) }
        device?.let { query.addQueryParameter("device", it) }
        return Request.Builder().url(query.build())
            .header("Authorization", "Bearer $bearer").header("Sec-WebSocket-Protocol", "notify.v1.json").build()
    }

    private class Listener(private val events: Channel<Event>) : WebSocketListener() {
        override fun onMessage(webSocket: WebSocket, text: String) {
            events.trySend(Event.Text(text))
        }

        override fun onClosing(webSocket: WebSocket, code: Int, reason: String) {
            webSocket.close(NORMAL_CLOSURE, null)
            val error = "close code $code $reason"
            events.trySend(
                Event.End(
                    when (code) {
                        TOO_MANY, FORBIDDEN -> Stopped(error)
                        TOKEN_EXPIRED -> TokenRefused(error)
                        else -> IOException(error)
                    },
                ),
            )
        }

        override fun onFailure(webSocket: WebSocket, t: Throwable, response: Response?) {
            val reason = when (response?.code) {
                401 -> TokenRefused("HTTP 401")
                403 -> Stopped("HTTP 403")
                else -> t as? IOException ?: IOException(t)
            }
            events.trySend(Event.End(reason, response?.retryAfter()))
        }
    }

    /** Takes a frame into the ledger, and shows what is new. Frames of unknown types are ignored. */
    private fun handle(type: String?, frame: JsonObject) {
        when (type) {
            "welcome" -> {
                val gap = frame.text("resumed") == "gap"
                change { it.welcome(frame.text("epoch") ?: "", gap, frame.number("from") ?: 1) }
                if (gap) onGap(0, 0)
            }
            "messages", "early" -> for (members in frame["messages"]?.jsonArray.orEmpty()) {
                val message = Message(this, members.jsonObject)
                if (change { it.receive(message) } == Ledger.Verdict.NEW) onMessage(message)
            }
            "revoke", "nacked" -> change { ledger -> ledger.revoke(frame["ids"]?.jsonArray.orEmpty().map { it.jsonPrimitive.content }) }
            "gap" -> {
                val from = frame.number("from") ?: 1
                val to = frame.number("to") ?: 0
                change { it.gap(from, to) }
                onGap(from, to)
            }
        }
    }

    /** Writes acknowledgements, refusals and pings until the connection ends. What is lost with it, the engine sends again. */
    private suspend fun say(socket: WebSocket, heartbeat: Duration) = coroutineScope {
        launch {
            while (isActive) {
                delay(heartbeat)
                socket.send(buildJsonObject { put("type", "ping"); put("ts", System.currentTimeMillis()) }.toString())
            }
        }
        for (change in changed) due().forEach { socket.send(it.toString()) }
    }

    private fun due(): List<JsonObject> = synchronized(ledger) {
        val (seq, ids) = ledger.takeAcks()
        buildList {
            if (seq > 0) add(buildJsonObject { put("type", "ack"); put("seq", seq) })
            for (some in ids.chunked(ACKED_IDS)) add(buildJsonObject { put("type", "ack"); put("ids", some.inJson()) })
            for ((id, reason) in ledger.takeNacks()) {
                add(buildJsonObject { put("type", "nack"); put("ids", listOf(id).inJson()); put("reason", reason) })
            }
        }
    }

    /** Tells the engine that this client is there while it cannot connect. Failures are the reason to probe again. */
    private suspend fun probe(pace: Pace) {
        while (true) {
            delay(pace.varied(pace.heartbeat / 3))
            try {
                val request = Request.Builder().url(url.toHttpUrl().newBuilder().addPathSegments("v1/heartbeat").build())
                    .header("Authorization", "Bearer ${bearer()}").header("X-Client-ID", name)
                    .header("X-Last-Seq", synchronized(ledger) { ledger.handled }.toString()).build()
                val after = runInterruptible(Dispatchers.IO) { http.newCall(request).execute().use { it.retryAfter() } }
                after?.let { delay(it) }
            } catch (_: Exception) {
                currentCoroutineContext().ensureActive()
            }
        }
    }
}

private fun Response.retryAfter(): Duration? =
    header("Retry-After")?.toDoubleOrNull()?.takeIf { it > 0 && it <= RETRY_AFTER_MAX }?.let { (it * (1 + 0.3 * Random.nextDouble())).seconds }

private fun JsonObject.text(name: String): String? = this[name]?.jsonPrimitive?.content

private fun JsonObject.number(name: String): Long? = text(name)?.toLongOrNull()

private fun List<String>.inJson() = JsonArray(map(::JsonPrimitive))
