// The client as a program that `python -m tests.conformance --client` runs (tests/conformance/client_under_test.py).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"ray-notification-engine/clients/go/notify"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	token, manual := os.Getenv("NOTIFY_TOKEN"), os.Getenv("NOTIFY_ACK") == "manual"
	var shown sync.Map // id -> *notify.Message
	client := &notify.Client{
		URL:   os.Getenv("NOTIFY_URL"),
		Token: func(context.Context) (string, error) { return token, nil },
		OnMessage: func(message *notify.Message) {
			shown.Store(message.ID, message)
			line, _ := json.Marshal(map[string]any{"seq": message.Seq, "id": message.ID})
			fmt.Println(string(line))
			if !manual {
				message.Ack()
			}
		},
	}
	ended := make(chan error, 1)
	go func() { ended <- client.Run(ctx) }()
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		var command struct{ Ack, Nack, Reason string }
		if err := json.Unmarshal(input.Bytes(), &command); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		if message, ok := shown.Load(command.Ack + command.Nack); ok && command.Ack != "" {
			message.(*notify.Message).Ack()
		} else if ok {
			message.(*notify.Message).Nack(command.Reason)
		}
	}
	cancel()
	<-ended
}
