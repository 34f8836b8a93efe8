/** A handler that acknowledges the first message and fails at the second. */

import kotlin.system.exitProcess
import kotlinx.coroutines.runBlocking
import notify.Client

public fun main() {
    val client = Client(
        url = System.getenv("NOTIFY_URL"),
        token = { System.getenv("NOTIFY_TOKEN") },
        onMessage = { message -> if (message.seq == 2L) error("full") else message.ack() },
    )
    try {
        runBlocking { client.run() }
    } catch (_: IllegalStateException) {
        exitProcess(0)
    }
}
