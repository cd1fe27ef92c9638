package notices_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/artifactfs/artifactfs/fetch/notices"
)

// A message that many goroutines report appears once in the status and once in the log.
func TestMessageAppearsOnce(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.WarnLevel)
	n := notices.List{Log: zap.New(core)}
	if got := n.All(); len(got) != 0 {
		t.Errorf("messages before any: got %q", got)
	}
	n.Add("first")
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			n.AddError(fmt.Errorf("fetch: %w", errors.New("no filters")))
			n.Add("first")
			n.Add("")
			n.AddError(nil)
		})
	}
	wg.Wait()
	n.Add("last")
	want := []string{"first", "fetch: no filters", "last"}
	if got := n.All(); !slices.Equal(got, want) {
		t.Errorf("messages: got %q, want %q", got, want)
	}
	var lines []string
	for _, e := range logged.All() {
		lines = append(lines, e.Message)
	}
	if !slices.Equal(lines, want) {
		t.Errorf("log: got %q, want %q", lines, want)
	}
	n.All()[0] = "changed" // the caller owns the result
	if got := n.All(); got[0] != "first" {
		t.Errorf("messages after a change of the result: got %q, want %q", got, want)
	}
}
