package notify

import "encoding/json"

// Message is a notification as the engine delivers it.
type Message struct {
	// members, made by docs/members.py
	// Type: What happened.
	Type string `json:"type"`
	// ID: Idempotency key, kept 24 h per user. The engine makes one when it is absent.
	ID string `json:"id"`
	// Priority: Which goes first under load; normal unless given.
	Priority string `json:"priority"`
	// Actor: Who did it.
	Actor json.RawMessage `json:"actor,omitempty"`
	// Target: To what.
	Target json.RawMessage `json:"target,omitempty"`
	// Context: Where.
	Context json.RawMessage `json:"context,omitempty"`
	// URL: The link that a client opens.
	URL string `json:"url,omitempty"`
	// Image: The picture that a client shows beside it.
	Image string `json:"image,omitempty"`
	// Data: The payload.
	Data json.RawMessage `json:"data"`
	// TS: When it happened; when it was accepted, unless given.
	TS int64 `json:"ts"`
	// Ask: A question to the user, which is answered once.
	Ask json.RawMessage `json:"ask,omitempty"`
	// Traceparent: The trace it belongs to (W3C Trace Context).
	Traceparent string `json:"traceparent,omitempty"`
	// Seq: Its number in the user's mailbox. A repeat has the same.
	Seq uint64 `json:"seq"`
	// EventID: The cursor after this message, `<epoch>-<seq>`. An early copy has none.
	EventID string `json:"event_id,omitempty"`
	// Early: It came ahead of lower numbers.
	Early bool `json:"early,omitempty"`
	// Due: When it was due, if it was delayed.
	Due int64 `json:"due,omitempty"`
	// Attempt: How often it was sent on this connection.
	Attempt int64 `json:"attempt"`
	// Count: How many messages it stands for.
	Count int64 `json:"count,omitempty"`
	// Actors: The first different actors of a summary.
	Actors []json.RawMessage `json:"actors,omitempty"`
	// FirstTS: The first time of a summary's messages.
	FirstTS int64 `json:"first_ts,omitempty"`
	// LastTS: The last time of a summary's messages.
	LastTS int64 `json:"last_ts,omitempty"`
	// Collapse: The key of a summary.
	Collapse string `json:"collapse,omitempty"`
	// Text: The text of a summary, by the publisher's template.
	Text string `json:"text,omitempty"`
	// Replaces: The id of the message that a summary replaces. Acknowledge both.
	Replaces string `json:"replaces,omitempty"`
	// Answer: The answer to the question that it replaces: `answer`, `label`, `text`, `by`, `at`.
	Answer json.RawMessage `json:"answer,omitempty"`
	// Unsubscribe: The path that turns its category off for this user, where the category has one.
	Unsubscribe string `json:"unsubscribe,omitempty"`
	// end of members

	client *Client
}

// Ack acknowledges the message: no device of the user gets it again. Repeating it does no harm.
func (m *Message) Ack() { m.client.change(func(l *ledger) { l.settle(m.ID) }) }

// Nack refuses the message: it goes to the dead letters with the reason. The client repeats it until the engine confirms it.
func (m *Message) Nack(reason string) { m.client.change(func(l *ledger) { l.refuse(m.ID, reason) }) }
