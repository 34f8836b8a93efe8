// Package notify receives notifications of ray-notification-engine over WebSocket.
//
// A client keeps itself connected. It shows each message once, in order; a message is acknowledged by [Message.Ack], and until then the
// engine keeps it and sends it again. The interface it speaks is docs/PROTOCOL-RECEIVING.md.
package notify

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	frameBytesMax = 16 << 20 // a frame of messages is bounded by the engine, far below
	ackedIDs      = 50       // in one frame: it has 64 KiB at most, and an id 128 characters of up to 6 bytes
	requestTime   = 10 * time.Second
	retryAfterMax = 86400 // seconds
	refusalsMax   = 2     // of a token, one after another: the first one is followed by another attempt at once
	tokenExpired  = 4401  // close codes
	forbidden     = 4403
	tooMany       = 4409 // connections of this user
)

var tokenTime = 30 * time.Second // of one call of Token

// ErrStopped ends Run: the engine refuses this client for good.
var ErrStopped = errors.New("notify: the engine refuses this client")

var errToken = errors.New("notify: the token is not valid, or has expired")

// Client is one user's connection. Its fields are set before Run, and not changed after.
type Client struct {
	URL          string                                // of the engine: http://127.0.0.1:8000
	Token        func(context.Context) (string, error) // asked before every connection; its context ends after 30 s
	OnMessage    func(*Message)                        // called for each message, one after another
	OnDisconnect func(error)                           // why a connection ended, or could not be made; may be nil
	OnGap        func(from, to uint64)                 // these numbers are gone, 0 and 0: the engine does not know which; may be nil
	Cursor       string                                // where to begin; "" for the oldest pending message
	Device       string                                // name of this device; may be empty

	handling   sync.Mutex // of one frame: the end waits for it
	mutex      sync.Mutex
	ledger     *ledger
	changed    chan struct{} // something is to be said
	timing     timing
	name       string // of the heartbeat probes
	stopProbes context.CancelFunc
}

type timing struct {
	heartbeat, timeout time.Duration
	delays             []time.Duration
	jitter             float64
}

type frame struct {
	Type        string     `json:"type"`
	Epoch       string     `json:"epoch"`
	Resumed     string     `json:"resumed"`
	From        uint64     `json:"from"`
	To          uint64     `json:"to"`
	HeartbeatMS int64      `json:"heartbeat_ms"`
	TimeoutMS   int64      `json:"timeout_ms"`
	AfterMS     int64      `json:"after_ms"`
	Messages    []*Message `json:"messages"`
	IDs         []string   `json:"ids"`
	Reconnect   *struct {
		DelaysMS []int64 `json:"delays_ms"`
		Jitter   float64 `json:"jitter"`
	} `json:"reconnect"`
}

// LastEventID is the cursor: everything up to it is handled. An application may keep it for its next start.
func (c *Client) LastEventID() string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.ledger == nil {
		return c.Cursor
	}
	return c.ledger.cursor()
}

// Run connects, and again after every failure, until the context ends or the engine refuses this client for good. What was acknowledged
// is told to the engine first.
func (c *Client) Run(ctx context.Context) error {
	c.mutex.Lock()
	if c.ledger == nil { // else it goes on where the last Run ended
		c.ledger = newLedger(c.Cursor)
		c.changed = make(chan struct{}, 1)
	}
	c.mutex.Unlock()
	c.name = rand.Text()
	c.timing = timing{
		heartbeat: 30 * time.Second, timeout: time.Minute, jitter: 0.3,
		delays: []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second},
	}
	c.stopProbes = func() {}
	defer func() { c.stopProbes() }()
	refusals := 0 // of the token, since a connection was welcomed
	for failures := 0; ; failures++ {
		welcomed, after, err := c.connect(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !welcomed.IsZero() {
			refusals = 0
		}
		if errors.Is(err, errToken) {
			if refusals++; refusals == 1 {
				after = 0 // another token may do
			} else if refusals > refusalsMax {
				err = fmt.Errorf("%w: %w", ErrStopped, err)
			}
		}
		if c.OnDisconnect != nil {
			c.OnDisconnect(err)
		}
		if errors.Is(err, ErrStopped) {
			return err
		}
		if !welcomed.IsZero() {
			if time.Since(welcomed) >= c.timing.delays[len(c.timing.delays)-1] {
				failures = 0 // not before: a server that ends each connection at once is tried less and less often
			}
			var probing context.Context
			probing, c.stopProbes = context.WithCancel(ctx)
			go c.probe(probing, c.timing)
		}
		if after < 0 {
			after = c.timing.varied(c.timing.delays[min(failures, len(c.timing.delays)-1)])
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(after):
		}
	}
}

func (t timing) varied(delay time.Duration) time.Duration {
	return time.Duration(float64(delay) * (1 + t.jitter*(2*mathrand.Float64()-1)))
}

// connect serves one connection until it ends. welcomed: zero where it was not. after: when the engine asks to come again, below 0 where it
// does not.
func (c *Client) connect(ctx context.Context) (welcomed time.Time, after time.Duration, err error) {
	after = -1
	token, err := c.token(ctx)
	if err != nil {
		return welcomed, after, err
	}
	query := url.Values{}
	if cursor := c.LastEventID(); cursor != "" {
		query.Set("last_event_id", cursor)
	}
	if c.Device != "" {
		query.Set("device", c.Device)
	}
	dialing, stop := context.WithTimeout(ctx, requestTime)
	defer stop()
	socket, answer, err := websocket.Dial(dialing, "ws"+strings.TrimPrefix(c.base(), "http")+"/v1/ws?"+query.Encode(), &websocket.DialOptions{
		Subprotocols: []string{"notify.v1.json"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}},
	})
	if err != nil {
		return welcomed, retryAfter(answer), refusal(answer, err)
	}
	socket.SetReadLimit(frameBytesMax)
	// Not the caller's context: its end lets `say` write what is due, and close.
	open, end := context.WithCancel(context.Background())
	var saying sync.WaitGroup
	defer func() {
		end()
		socket.CloseNow()
		saying.Wait() // or it would take what the next connection has to say
	}()
	unwelcomed := context.AfterFunc(ctx, end)
	silent := time.AfterFunc(c.timing.timeout, end) // nothing came for too long
	defer silent.Stop()
	var back time.Time // as a drain said
	defer func() {
		if !back.IsZero() {
			after = max(0, time.Until(back))
		}
	}()
	for {
		_, text, err := socket.Read(open)
		if err != nil {
			switch code := websocket.CloseStatus(err); code {
			case tooMany, forbidden:
				err = fmt.Errorf("%w: close code %d", ErrStopped, code)
			case tokenExpired:
				err = fmt.Errorf("%w: %w", errToken, err)
			}
			return welcomed, after, err
		}
		var got frame
		var other *json.UnmarshalTypeError // a member of a type that this client does not know
		if err := json.Unmarshal(text, &got); err != nil && !errors.As(err, &other) {
			return welcomed, after, fmt.Errorf("notify: a frame is not valid: %w", err)
		}
		silent.Stop() // a slow OnMessage is no silence of the engine
		c.handle(ctx, &got)
		switch got.Type {
		case "welcome":
			c.take(&got)
			welcomed = time.Now()
			unwelcomed()
			c.stopProbes()
			saying.Add(1)
			go func(heartbeat time.Duration) {
				defer saying.Done()
				c.say(ctx, open, socket, heartbeat)
			}(c.timing.heartbeat)
		case "drain":
			back = time.Now().Add(time.Duration(got.AfterMS) * time.Millisecond)
		}
		silent.Reset(c.timing.timeout)
	}
}

// token asks for one, for as long as tokenTime.
func (c *Client) token(ctx context.Context) (string, error) {
	asking, stop := context.WithTimeout(ctx, tokenTime)
	defer stop()
	return c.Token(asking)
}

// refusal of a connection: why it is final, where it is.
func refusal(answer *http.Response, err error) error {
	if answer != nil {
		switch answer.StatusCode {
		case http.StatusUnauthorized:
			return fmt.Errorf("%w: %w", errToken, err)
		case http.StatusForbidden:
			return fmt.Errorf("%w: %w", ErrStopped, err)
		}
	}
	return err
}

// retryAfter is how long the answer wants to be waited for; below 0 where it does not say.
func retryAfter(answer *http.Response) time.Duration {
	if answer == nil {
		return -1
	}
	seconds, err := strconv.ParseFloat(answer.Header.Get("Retry-After"), 64)
	if err != nil || seconds <= 0 || seconds > retryAfterMax {
		return -1
	}
	return time.Duration(seconds * float64(time.Second) * (1 + 0.3*mathrand.Float64()))
}

// base is the URL without a slash at its end.
func (c *Client) base() string { return strings.TrimRight(c.URL, "/") }

// take sets the pace that the engine asks for.
func (c *Client) take(got *frame) {
	if got.HeartbeatMS > 0 && got.TimeoutMS > 0 {
		c.timing.heartbeat = time.Duration(got.HeartbeatMS) * time.Millisecond
		c.timing.timeout = time.Duration(got.TimeoutMS) * time.Millisecond
	}
	if got.Reconnect != nil && len(got.Reconnect.DelaysMS) > 0 {
		c.timing.jitter = got.Reconnect.Jitter
		c.timing.delays = nil
		for _, delay := range got.Reconnect.DelaysMS {
			c.timing.delays = append(c.timing.delays, time.Duration(delay)*time.Millisecond)
		}
	}
}

// handle takes a frame into the ledger, and shows what is new until the context ends. Frames of unknown types are ignored.
func (c *Client) handle(ctx context.Context, got *frame) {
	c.handling.Lock()
	defer c.handling.Unlock()
	switch got.Type {
	case "welcome":
		c.change(func(l *ledger) { l.welcome(got.Epoch, got.Resumed == "gap", got.From) })
		if got.Resumed == "gap" && c.OnGap != nil {
			c.OnGap(0, 0)
		}
	case "messages", "early":
		for _, message := range got.Messages {
			if ctx.Err() != nil {
				return // it comes again
			}
			message.client = c
			var found verdict
			c.change(func(l *ledger) { found = l.receive(message) })
			if found == isNew {
				c.OnMessage(message)
			}
		}
	case "revoke", "nacked":
		c.change(func(l *ledger) { l.revoke(got.IDs...) })
	case "gap":
		c.change(func(l *ledger) { l.gap(got.From, got.To) })
		if c.OnGap != nil {
			c.OnGap(got.From, got.To)
		}
	}
}

// change the ledger, and say what it asks for.
func (c *Client) change(apply func(*ledger)) {
	c.mutex.Lock()
	apply(c.ledger)
	c.mutex.Unlock()
	select {
	case c.changed <- struct{}{}:
	default: // it will be said with what waits
	}
}

// say writes acknowledgements, refusals and pings until the connection ends. What is lost with it, the engine sends again. When the caller's
// context ends, it waits for the frame that is being handled, says what is due and closes.
func (c *Client) say(ctx, open context.Context, socket *websocket.Conn, heartbeat time.Duration) {
	pings := time.NewTicker(heartbeat)
	defer pings.Stop()
	for {
		var frames []any
		select {
		case <-open.Done():
			return
		case <-ctx.Done():
			c.handling.Lock()
			defer c.handling.Unlock()
			last, stop := context.WithTimeout(open, requestTime)
			write(last, socket, c.due())
			stop()
			socket.Close(websocket.StatusNormalClosure, "")
			return
		case now := <-pings.C:
			frames = []any{map[string]any{"type": "ping", "ts": now.UnixMilli()}}
		case <-c.changed:
			frames = c.due()
		}
		if !write(open, socket, frames) {
			socket.CloseNow() // the reader ends, and connects again
			return
		}
	}
}

func write(ctx context.Context, socket *websocket.Conn, frames []any) bool {
	for _, one := range frames {
		text, err := json.Marshal(one)
		if err != nil || socket.Write(ctx, websocket.MessageText, text) != nil {
			return false
		}
	}
	return true
}

func (c *Client) due() (frames []any) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	seq, ids := c.ledger.takeAcks()
	if seq > 0 {
		frames = append(frames, map[string]any{"type": "ack", "seq": seq})
	}
	for some := range slices.Chunk(ids, ackedIDs) {
		frames = append(frames, map[string]any{"type": "ack", "ids": some})
	}
	for id, reason := range c.ledger.takeNacks() {
		frames = append(frames, map[string]any{"type": "nack", "ids": []string{id}, "reason": reason})
	}
	return frames
}

// probe tells the engine that this client is there while it cannot connect. Failures are the reason to probe again.
func (c *Client) probe(ctx context.Context, pace timing) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pace.varied(pace.heartbeat / 3)):
		}
		token, err := c.token(ctx)
		if err != nil {
			continue
		}
		_, seq, _ := parseEventID(c.LastEventID())
		asking, stop := context.WithTimeout(ctx, requestTime)
		request, err := http.NewRequestWithContext(asking, http.MethodGet, c.base()+"/v1/heartbeat", nil)
		if err == nil {
			request.Header.Set("Authorization", "Bearer "+token)
			request.Header.Set("X-Client-ID", c.name)
			request.Header.Set("X-Last-Seq", strconv.FormatUint(seq, 10))
			if answer, err := http.DefaultClient.Do(request); err == nil {
				answer.Body.Close()
				wait := retryAfter(answer)
				stop()
				select {
				case <-ctx.Done():
				case <-time.After(wait):
				}
				continue
			}
		}
		stop()
	}
}
