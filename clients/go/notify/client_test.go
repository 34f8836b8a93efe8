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

// serve sends these frames on each connection, and a pong for each frame of the client. Returns its URL, and the cursors of the connections.
func serve(t *testing.T, frames ...string) (string, chan string) {
	cursors := make(chan string, 9)
	routes := http.NewServeMux()
	routes.HandleFunc("GET /v1/ws", func(answer http.ResponseWriter, request *http.Request) {
		socket, err := websocket.Accept(answer, request, &websocket.AcceptOptions{Subprotocols: []string{"notify.v1.json"}})
		if err != nil {
			return
		}
		cursors <- request.URL.Query().Get("last_event_id")
		for _, text := range frames {
			_ = socket.Write(request.Context(), websocket.MessageText, []byte(text))
		}
		for {
			if _, _, err := socket.Read(request.Context()); err != nil {
				return
			}
			_ = socket.Write(request.Context(), websocket.MessageText, []byte(`{"type":"pong"}`))
		}
	})
	server := httptest.NewServer(routes)
	t.Cleanup(server.Close)
	return server.URL, cursors
}

func token(context.Context) (string, error) { return "t", nil }

// A message whose handling takes longer than the engine may be silent does not end the connection.
func TestASlowHandlerKeepsItsConnection(t *testing.T) {
	url, cursors := serve(t, welcome, two)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var lost atomic.Int32
	client := &Client{
		URL:          url,
		Token:        token,
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
	if len(cursors) != 1 || lost.Load() != 0 {
		t.Fatalf("%d connections, %d lost", len(cursors), lost.Load())
	}
}

// A token function that does not return before its context ends is asked again.
func TestATokenThatDoesNotComeIsAskedForAgain(t *testing.T) {
	before := tokenTime
	tokenTime = 50 * time.Millisecond
	defer func() { tokenTime = before }()
	url, _ := serve(t, welcome, two)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	asked, shown := 0, 0
	client := &Client{
		URL: url,
		Token: func(ctx context.Context) (string, error) {
			if asked++; asked == 1 {
				<-ctx.Done()
			}
			return "t", ctx.Err()
		},
		OnMessage: func(message *Message) {
			shown++
			cancel()
		},
	}
	_ = client.Run(ctx)
	if asked != 2 || shown == 0 {
		t.Fatalf("asked %d times, %d shown", asked, shown)
	}
}

// A client that is run again goes on where it ended, and shows nothing twice.
func TestASecondRunGoesOnWhereTheFirstEnded(t *testing.T) {
	url, cursors := serve(t, welcome, two)
	shown := 0
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	client := &Client{URL: url, Token: token, OnMessage: func(message *Message) {
		message.Ack()
		if shown++; shown == 2 {
			cancel()
		}
	}}
	_ = client.Run(ctx)
	again, stop := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer stop()
	_ = client.Run(again)
	if first, second := <-cursors, <-cursors; first != "" || second != "7-2" || shown != 2 {
		t.Fatalf("cursors %q and %q, %d shown", first, second, shown)
	}
}

// What the handler acknowledges after the context has ended is told, and nothing further is shown.
func TestTheEndWaitsForTheHandler(t *testing.T) {
	heard := make(chan string, 9)
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		socket, _ := websocket.Accept(answer, request, &websocket.AcceptOptions{Subprotocols: []string{"notify.v1.json"}})
		defer close(heard)
		for _, frame := range []string{`{"type":"welcome","epoch":"7","resumed":"new","from":1}`, two} {
			_ = socket.Write(request.Context(), websocket.MessageText, []byte(frame))
		}
		for {
			_, text, err := socket.Read(request.Context())
			if err != nil {
				return
			}
			heard <- string(text)
		}
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(context.Background())
	shown := 0
	client := &Client{URL: server.URL, Token: token, OnMessage: func(message *Message) {
		shown++
		cancel()
		select {
		case <-heard: // closed: the engine was left before
		case <-time.After(200 * time.Millisecond):
		}
		message.Ack()
	}}
	_ = client.Run(ctx)
	if text := <-heard; text != `{"seq":1,"type":"ack"}` || shown != 1 {
		t.Fatalf("%d shown, told %q", shown, text)
	}
}

// A URL may end in a slash, and a cursor that the engine does not know is told.
func TestAnUnknownCursorIsToldAsAGap(t *testing.T) {
	url, _ := serve(t, `{"type":"welcome","epoch":"8","resumed":"gap","from":1}`)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	told := false
	client := &Client{
		URL:       url + "/",
		Token:     token,
		Cursor:    "7-12",
		OnMessage: func(*Message) {},
		OnGap: func(from, to uint64) {
			told = from == 0 && to == 0
			cancel()
		},
	}
	_ = client.Run(ctx)
	if !told {
		t.Fatal("the gap was not told")
	}
}
