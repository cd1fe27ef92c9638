package background

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/transport"
)

// TestFaultBehindAMount checks that a panic in the background work of a mount is reported as a failure of this mount
// and does not end the process.
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
	w := New("mount", t.TempDir(), zap.NewNop())
	w.Store = store
	w.Go("tidy", func() { panic("a bug") })
	w.Wait()
	if err := w.Failure(); !errors.Is(err, errFault) {
		t.Errorf("failure is %v", err)
	}
	w.Go("tidy", func() {})
	w.Wait()
	if err := w.Failure(); err != nil {
		t.Errorf("failure is %v when it went well again", err)
	}
	tries := 0
	w.Repeat(context.Background(), "prefetch", nil, func() error {
		if tries++; tries == 1 {
			panic("a bug")
		}
		return nil
	})
	if tries != 2 || w.Failure() != nil {
		t.Errorf("%d tries, failure is %v", tries, w.Failure())
	}
}
