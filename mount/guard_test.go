package mount

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/transport"
)

// What panics behind a mount is that mount's failure, and no end of the process.
func TestFaultBehindAMount(t *testing.T) {
	remote, err := transport.Open(t.TempDir(), transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := fetch.Open(fetch.Config{Dir: t.TempDir(), Remote: remote, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	m := &Mount{host: &Host{Log: zap.NewNop()}, acquired: acquired{store: store}, serving: serving{failures: map[string]error{}}}
	m.behind("tidy", func() { panic("a bug") })
	m.work.Wait()
	if err := m.failure(); !errors.Is(err, errFault) {
		t.Errorf("failure is %v", err)
	}
	m.behind("tidy", func() {})
	m.work.Wait()
	if err := m.failure(); err != nil {
		t.Errorf("failure is %v when it went well again", err)
	}
	tries := 0
	m.persist(context.Background(), "prefetch", nil, func() error {
		if tries++; tries == 1 {
			panic("a bug")
		}
		return nil
	})
	if tries != 2 || m.failure() != nil {
		t.Errorf("%d tries, failure is %v", tries, m.failure())
	}
}
