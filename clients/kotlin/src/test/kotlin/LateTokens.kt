/** A client whose first tokens do not come: prints why each attempt to connect failed. Nobody listens at its URL. */

import kotlin.system.exitProcess
import kotlin.time.Duration.Companion.milliseconds
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import notify.Client
import notify.tokenTime

public fun main() {
    tokenTime = 50.milliseconds
    var asked = 0
    val client = Client(
        url = "http://127.0.0.1:9",
        token = {
            when (++asked) {
                1 -> awaitCancellation()
                2 -> withTimeout(1.milliseconds) { awaitCancellation() }
                else -> "t"
            }
        },
        onMessage = {},
        onDisconnect = { reason ->
            println(reason::class.simpleName)
            if (asked == 3) exitProcess(0)
        },
    )
    runBlocking { client.run() }
}
