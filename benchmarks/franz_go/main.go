// Sends messages to a topic, or reads it from its beginning, as fast as franz-go can. Prints how
// many messages there were so far, four times a second.
//
// franz-go's own bench program is a module without an address (`module bench`), which `go install`
// refuses; this one sets the same options of the library.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const bufferedBytes = 250 << 20

func main() {
	brokers := flag.String("brokers", "localhost:9092", "addresses, separated by commas")
	topic := flag.String("topic", "", "where to, or where from")
	consume := flag.Int64("consume", 0, "read so many messages instead of sending any")
	size := flag.Int("record-bytes", 100, "of each message sent")
	linger := flag.Duration("linger", 0, "how long a batch waits for more messages")
	batchBytes := flag.Int("batch-max-bytes", 1_000_000, "most of a batch")
	flag.Parse()

	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(*brokers, ",")...),
		kgo.DefaultProduceTopic(*topic),
		kgo.MaxBufferedRecords(bufferedBytes / *size + 1),
		kgo.ProducerBatchMaxBytes(int32(*batchBytes)),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerLinger(*linger),
		// acks=1, which goes without the idempotence that is on otherwise.
		kgo.RequiredAcks(kgo.LeaderAck()),
		kgo.DisableIdempotentWrite(),
		kgo.MaxProduceRequestsInflightPerBroker(5),
		kgo.MaxConcurrentFetches(3),
		kgo.FetchMaxBytes(5 << 20),
	}
	if *consume > 0 {
		options = append(options, kgo.ConsumeTopics(*topic))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		log.Fatal(err)
	}
	var messages atomic.Int64
	go func() {
		for range time.Tick(250 * time.Millisecond) {
			fmt.Println(messages.Load())
		}
	}()
	if *consume > 0 {
		read(client, &messages, *consume)
	} else {
		send(client, &messages, *size)
	}
	fmt.Println(messages.Load())
}

func send(client *kgo.Client, messages *atomic.Int64, size int) {
	done := func(_ *kgo.Record, err error) {
		if err != nil {
			log.Fatal(err)
		}
		messages.Add(1)
	}
	for {
		client.Produce(context.Background(), kgo.SliceRecord(make([]byte, size)), done)
	}
}

func read(client *kgo.Client, messages *atomic.Int64, most int64) {
	for messages.Load() < most {
		fetches := client.PollFetches(context.Background())
		fetches.EachError(func(topic string, partition int32, err error) {
			log.Fatalf("topic %s partition %d: %v", topic, partition, err)
		})
		messages.Add(int64(fetches.NumRecords()))
	}
}
