/** The client as a program that `python -m tests.conformance --client` runs (tests/conformance/client_under_test.py). */

import java.util.concurrent.ConcurrentHashMap
import kotlin.system.exitProcess
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.put
import notify.Client
import notify.Message
import notify.Stopped

public fun main() {
    val token = System.getenv("NOTIFY_TOKEN")
    val manual = System.getenv("NOTIFY_ACK") == "manual"
    val shown = ConcurrentHashMap<String, Message>()
    val client = Client(
        url = System.getenv("NOTIFY_URL"),
        token = { token },
        onMessage = { message ->
            shown[message.id] = message
            println(buildJsonObject { put("seq", message.seq); put("id", message.id) })
            if (!manual) message.ack()
        },
    )
    runBlocking {
        val running = launch(Dispatchers.Default) {
            try {
                client.run()
            } catch (_: Stopped) {
            }
        }
        launch(Dispatchers.IO) {
            for (line in generateSequence(::readLine)) {
                val command = Json.parseToJsonElement(line).jsonObject.mapValues { it.value.jsonPrimitive.content }
                val message = shown[command["ack"] ?: command["nack"]] ?: continue
                if ("ack" in command) message.ack() else message.nack(command["reason"] ?: "")
            }
        }.join()
        running.cancelAndJoin()
    }
    exitProcess(0) // the threads of OkHttp live on for a minute
}
