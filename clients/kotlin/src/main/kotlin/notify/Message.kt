package notify

import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.jsonPrimitive

/** A notification as the engine delivers it. */
public class Message internal constructor(private val client: Client, private val members: JsonObject) {
    // members, made by docs/members.py
    /** What happened. */
    public val type: String = text("type") ?: ""
    /** Idempotency key, kept 24 h per user. The engine makes one when it is absent. */
    public val id: String = text("id") ?: ""
    /** Which goes first under load; normal unless given. */
    public val priority: String = text("priority") ?: ""
    /** Who did it. */
    public val actor: JsonElement? = members["actor"]
    /** To what. */
    public val target: JsonElement? = members["target"]
    /** Where. */
    public val context: JsonElement? = members["context"]
    /** The link that a client opens. */
    public val url: String? = text("url")
    /** The picture that a client shows beside it. */
    public val image: String? = text("image")
    /** The payload. */
    public val data: JsonElement? = members["data"]
    /** When it happened; when it was accepted, unless given. */
    public val ts: Long = number("ts") ?: 0
    /** A question to the user, which is answered once. */
    public val ask: JsonElement? = members["ask"]
    /** The trace it belongs to (W3C Trace Context). */
    public val traceparent: String? = text("traceparent")
    /** Its number in the user's mailbox. A repeat has the same. */
    public val seq: Long = number("seq") ?: 0
    /** The cursor after this message, `<epoch>-<seq>`. An early copy has none. */
    public val eventId: String? = text("event_id")
    /** It came ahead of lower numbers. */
    public val early: Boolean = text("early") == "true"
    /** When it was due, if it was delayed. */
    public val due: Long? = number("due")
    /** How often it was sent on this connection. */
    public val attempt: Long = number("attempt") ?: 0
    /** How many messages it stands for. */
    public val count: Long? = number("count")
    /** The first different actors of a summary. */
    public val actors: JsonElement? = members["actors"]
    /** The first time of a summary's messages. */
    public val firstTs: Long? = number("first_ts")
    /** The last time of a summary's messages. */
    public val lastTs: Long? = number("last_ts")
    /** The key of a summary. */
    public val collapse: String? = text("collapse")
    /** The text of a summary, by the publisher's template. */
    public val text: String? = text("text")
    /** The id of the message that a summary replaces. Acknowledge both. */
    public val replaces: String? = text("replaces")
    /** The answer to the question that it replaces: `answer`, `label`, `text`, `by`, `at`. */
    public val answer: JsonElement? = members["answer"]
    /** The path that turns its category off for this user, where the category has one. */
    public val unsubscribe: String? = text("unsubscribe")
    // end of members

    /** Acknowledges the message: no device of the user gets it again. Repeating it does no harm. */
    public fun ack(): Unit = client.change { it.settle(id) }

    /** Refuses the message: it goes to the dead letters with the reason. The client repeats it until the engine confirms it. */
    public fun nack(reason: String): Unit = client.change { it.refuse(id, reason) }

    private fun text(name: String): String? = members[name]?.jsonPrimitive?.content

    private fun number(name: String): Long? = text(name)?.toLong()
}
