package review

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/session/annotate"
)

// TestActsOfOneToken checks that requests with one token cannot take all places of a repository.
func TestActsOfOneToken(t *testing.T) {
	w := newWorld(t, object.SHA1)
	w.work("work")
	var held []*places.Place
	for range places.PartsOfReads(readers)[places.OfToken] {
		place, err := w.reading.Enter(t.Context(), places.Small, places.Of("", "", w.ann.Token.ID)...)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, place)
	}
	var released atomic.Bool
	ended := make(chan error, 1)
	go func() {
		_, err := w.Approvals(t.Context(), w.ann, w.repo, "work")
		if !released.Load() {
			err = errors.Join(err, errors.New("the token has more than its share of places"))
		}
		ended <- err
	}()
	if _, err := w.Approvals(t.Context(), w.bob, w.repo, "work"); err != nil {
		t.Errorf("request with another token: %v", err)
	}
	released.Store(true)
	for _, place := range held {
		place.Release()
	}
	if err := await.Receive(t, ended); err != nil {
		t.Error(err)
	}
}

// TestManyThreads checks that the positions of the newest threads are found, and that the search has a limit of time.
func TestManyThreads(t *testing.T) {
	list := make([]Thread, maxLocated+3)
	for i := range list {
		list[i].On.Path = "file"
	}
	list[0].On.Path, list[len(list)-1].On.Path = "", ""
	state := func(i int) annotate.State {
		if list[i].Now == nil {
			return "none"
		}
		return list[i].Now.State
	}
	found := func(context.Context, annotate.Thread) (annotate.Now, error) {
		return annotate.Now{State: annotate.Same}, nil
	}
	if err := locate(t.Context(), list, time.Hour, found); err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int]annotate.State{0: "none", 1: annotate.Unknown, 2: annotate.Same,
		len(list) - 2: annotate.Same, len(list) - 1: "none"} {
		if got := state(i); got != want {
			t.Errorf("thread %d of %d: got %s, want %s", i, len(list), got, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		searched := 0
		err := locate(t.Context(), list, findTime, func(ctx context.Context, _ annotate.Thread) (annotate.Now, error) {
			searched++
			select {
			case <-ctx.Done():
				return annotate.Now{}, ctx.Err()
			case <-time.After(findTime * 2 / 3):
				return annotate.Now{State: annotate.Same}, nil
			}
		})
		if last := len(list) - 2; err != nil || searched != 2 || state(last) != annotate.Same ||
			state(last-1) != annotate.Unknown || state(2) != annotate.Unknown {
			t.Errorf("slow search: got %d searches, %v, states %s, %s, %s", searched, err, state(last), state(last-1), state(2))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := locate(ctx, list, findTime, found); !errors.Is(err, context.Canceled) {
			t.Errorf("search after the end of the request: got %v, want %v", err, context.Canceled)
		}
	})
}
