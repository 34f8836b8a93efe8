// A Kafka API server for tests, in memory: kafka PORT TOPIC...
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	cluster, err := kfake.NewCluster(kfake.Ports(port), kfake.NumBrokers(1), kfake.SeedTopics(2, os.Args[2:]...), kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(2))
	if err != nil {
		panic(err)
	}
	defer cluster.Close()
	fmt.Println("ready")
	var end [1]byte
	os.Stdin.Read(end[:])
}
