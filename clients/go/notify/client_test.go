package notify

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
)

const welcome = `{"type":"welcome","epoch":"7","resumed":"new","from":1,"heartbeat_ms":100,"timeout_ms":300}`
const two = `{"type":"messages","messages":[{"seq":1,"id":"m1","event_id":"7-1"},{"seq":2,"id":"m2","event_id":"7-2"}]}`

// A message whose handling takes longer than the engine may be silent does not end the connection.
func TestASlowHandlerKeepsItsConnection(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		socket, err := websocket.Accept(answer, request, &websocket.AcceptOptions{Subprotocols: []string{"notify.v1.json"}})
		if err != nil {
			return
		}
		connections.Add(1)
		for _, text := range []string{welcome, two} {
			_ = socket.Write(request.Context(), websocket.MessageText, []byte(text))
		}
		for {
			if _, _, err := socket.Read(request.Context()); err != nil {
				return
			}
			_ = socket.Write(request.Context(), websocket.MessageText, []byte(`{"type":"pong"}`))
		}
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var lost atomic.Int32
	client := &Client{
		URL:          server.URL,
		Token:        func(context.Context) (string, error) { return "t", nil },
		OnDisconnect: func(error) { lost.Add(1) },
		OnMessage: func(message *Message) {
			time.Sleep(500 * time.Millisecond)
			message.Ack()
			if message.Seq == 2 {
				time.AfterFunc(200*time.Millisecond, cancel)
			}
		},
	}
	_ = client.Run(ctx)
	if connections.Load() != 1 || lost.Load() != 0 {
		t.Fatalf("%d connections, %d lost", connections.Load(), lost.Load())
	}
}
