package notify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// settledMax bounds the ids that are remembered to drop repeats: 16 in-flight windows.
const settledMax = 4096

// reasonChars bounds the reason of a refusal: the engine takes no more.
const reasonChars = 1024

// ledger is what a client knows of its user's messages. It is pure: no clock, no I/O, no lock.
//
// A message is open from when it is shown until it is settled: acknowledged, refused, or handled on another device. A refusal settles when
// the server confirms it; until then it is said again on every connection, and the cursor does not pass the message. An early copy has no
// event id: it is acknowledged by id, and comes again in its place unless the server settled it.
type ledger struct {
	epoch   string
	floor   uint64              // everything up to it is handled
	high    uint64              // newest number shown or known to be gone
	open    map[string]*Message // shown and not settled
	former  map[string]bool     // ids shown and not settled in former epochs; they may come again under other numbers
	settled map[string]place    // shown before
	order   []string            // ids of settled, oldest first
	untold  map[string]uint64   // settled, and the server was not told
	refused map[string]string   // id -> reason, not confirmed
	unsaid  map[string]bool     // of those, to be said on this connection
}

// place is where a settled message was; seq 0: unknown.
type place struct {
	epoch string
	seq   uint64
}

type verdict int

const (
	isNew     verdict = iota // to be shown
	isOpen                   // shown, not settled
	isSettled                // settled before: acknowledged again
)

func newLedger(cursor string) *ledger {
	l := &ledger{
		open: map[string]*Message{}, settled: map[string]place{}, untold: map[string]uint64{},
		former: map[string]bool{}, refused: map[string]string{}, unsaid: map[string]bool{},
	}
	if epoch, seq, ok := parseEventID(cursor); ok {
		l.restart(epoch, seq)
	}
	return l
}

// parseEventID splits "7-1042".
func parseEventID(text string) (epoch string, seq uint64, ok bool) {
	at := strings.LastIndexByte(text, '-')
	if at < 1 {
		return "", 0, false
	}
	seq, err := strconv.ParseUint(text[at+1:], 10, 64)
	return text[:at], seq, err == nil
}

// cursor is what to present; "" before anything is known.
func (l *ledger) cursor() string {
	if l.epoch == "" {
		return ""
	}
	return fmt.Sprintf("%s-%d", l.epoch, l.floor)
}

// welcome takes over where delivery starts. Open messages before it were handled on another device meanwhile.
func (l *ledger) welcome(epoch string, gap bool, from uint64) {
	if epoch != l.epoch {
		for id := range l.open {
			l.former[id] = true
		}
		clear(l.open) // numbers of another epoch mean nothing here
	}
	from = max(from, 1)
	if epoch != l.epoch || gap {
		l.restart(epoch, from-1)
	}
	clear(l.unsaid)
	for id := range l.refused {
		l.unsaid[id] = true
	}
	var gone []string
	for id, message := range l.open {
		if _, waits := l.refused[id]; message.Seq < from && !waits {
			gone = append(gone, id)
		}
	}
	l.high = max(l.high, from-1)
	l.revoke(gone...)
}

func (l *ledger) receive(message *Message) verdict {
	if epoch, _, ok := parseEventID(message.EventID); ok && epoch != l.epoch {
		l.welcome(epoch, false, message.Seq)
	}
	if !message.Early {
		l.high = max(l.high, message.Seq) // an early copy moves no cursor
	}
	id := message.ID
	_, refused := l.refused[id]
	if refused {
		l.unsaid[id] = true // it comes again because the server has not heard
	}
	if shown, ok := l.open[id]; ok {
		if shown.Early && !message.Early {
			l.open[id] = message // its place is reached
		}
		return isOpen
	}
	before, known := l.settled[id]
	// The same id under another number is a new message. Numbers of another epoch cannot be compared.
	repeat := known && (before.seq == 0 || before.epoch != l.epoch || before.seq == message.Seq)
	switch {
	case refused:
		l.open[id] = message
		return isOpen
	case repeat:
		l.untold[id] = message.Seq
		l.advance()
		return isSettled
	}
	l.open[id] = message
	if l.former[id] {
		delete(l.former, id)
		return isOpen
	}
	return isNew
}

// settle takes a message as handled.
func (l *ledger) settle(id string) {
	if _, waits := l.refused[id]; waits {
		return
	}
	if message, ok := l.open[id]; ok {
		l.untold[id] = message.Seq
	}
	l.revoke(id)
}

func (l *ledger) refuse(id, reason string) {
	if _, ok := l.open[id]; ok || l.former[id] {
		said := []rune(reason)
		l.refused[id] = string(said[:min(len(said), reasonChars)])
		l.unsaid[id] = true
	}
}

// revoke settles without a word of ours: a refusal confirmed, or handled on another device.
func (l *ledger) revoke(ids ...string) {
	for _, id := range ids {
		message, open := l.open[id]
		_, known := l.settled[id]
		shown := open || l.former[id]
		delete(l.refused, id)
		delete(l.former, id)
		delete(l.open, id)
		if !shown {
			continue // a later message under its id is another one
		}
		if !known {
			l.order = append(l.order, id)
		}
		if open {
			l.settled[id] = place{l.epoch, message.Seq}
		} else if !known {
			l.settled[id] = place{}
		}
		if len(l.order) > settledMax {
			delete(l.settled, l.order[0])
			l.order = l.order[1:]
		}
	}
	l.advance()
}

// gap takes the numbers as gone.
func (l *ledger) gap(from, to uint64) {
	maps.DeleteFunc(l.open, func(_ string, message *Message) bool { return from <= message.Seq && message.Seq <= to })
	l.high = max(l.high, to)
	l.advance()
}

// takeAcks is what the server must be told since the last call: all up to seq unless that is 0, and ids above it.
func (l *ledger) takeAcks() (seq uint64, ids []string) {
	for id, number := range l.untold {
		if number > l.floor {
			ids = append(ids, id)
		} else {
			seq = l.floor
		}
	}
	slices.SortFunc(ids, func(one, other string) int { return cmp.Compare(l.untold[one], l.untold[other]) })
	clear(l.untold)
	return seq, ids
}

// takeNacks is what the server must be told of refusals since the last call, or since welcome: id -> reason.
func (l *ledger) takeNacks() map[string]string {
	said := map[string]string{}
	for id := range l.unsaid {
		if reason, ok := l.refused[id]; ok {
			said[id] = reason
		}
	}
	clear(l.unsaid)
	return said
}

func (l *ledger) advance() {
	floor := l.high
	for _, message := range l.open {
		if message.Seq > 0 {
			floor = min(floor, message.Seq-1)
		}
	}
	l.floor = max(l.floor, floor) // never back: what the server was told is told
}

func (l *ledger) restart(epoch string, seq uint64) {
	l.epoch, l.high, l.floor = epoch, seq, seq
	clear(l.untold)
}
