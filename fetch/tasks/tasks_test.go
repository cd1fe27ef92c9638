package tasks

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// Close ends the work that is in progress, refuses later work, and Wait returns only after all work has returned.
func TestGroup(t *testing.T) {
	g := New()
	var ended atomic.Int32
	began, finish := make(chan struct{}), make(chan struct{})
	for range 3 {
		if !g.Start(func(ctx context.Context) {
			began <- struct{}{}
			<-ctx.Done()
			<-finish // the work takes a while to end
			ended.Add(1)
		}) {
			t.Fatal("an open group refuses work")
		}
	}
	for range 3 {
		<-began
	}
	select {
	case <-g.Stopped():
		t.Error("the group is stopped before Close")
	default:
	}
	if !g.Close() || g.Close() {
		t.Error("results of the first and the second Close: want true and false")
	}
	<-g.Stopped()
	if g.Start(func(context.Context) { t.Error("work was run after Close") }) {
		t.Error("a closed group accepts work")
	}
	go func() {
		for range 3 {
			finish <- struct{}{}
		}
	}()
	if g.Wait(); ended.Load() != 3 {
		t.Errorf("work that had ended when Wait returned: %d, want 3", ended.Load())
	}
}

// The context of work ends with the work, so that what the work has started ends, too.
func TestContextOfWorkThatEnded(t *testing.T) {
	g := New()
	contexts := make(chan context.Context, 1)
	g.Start(func(ctx context.Context) { contexts <- ctx })
	<-(<-contexts).Done()
	g.Close()
	g.Wait()
}

// Tasks with the same key never overlap, tasks with other keys do not wait, and each waiting task gets its turn.
func TestTurns(t *testing.T) {
	var turns Turns[string]
	first, err := turns.Begin(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := turns.Begin(t.Context(), "b") // returns at once
	if err != nil {
		t.Fatal(err)
	}
	other()
	const waiters = 8
	var waiting, running, ran atomic.Int32
	done := make(chan struct{}, waiters)
	for range waiters {
		go func() {
			defer func() { done <- struct{}{} }()
			waiting.Add(1)
			end, err := turns.Begin(context.Background(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			if n := running.Add(1); n != 1 {
				t.Errorf("tasks that run at the same time: %d, want 1", n)
			}
			ran.Add(1)
			running.Add(-1)
			end()
		}()
	}
	await.Until(t, "all tasks wait", func() bool { return waiting.Load() == waiters })
	if n := ran.Load(); n != 0 {
		t.Errorf("%d tasks ran beside the first one", n)
	}
	first()
	for range waiters {
		<-done
	}
	if n := ran.Load(); n != waiters {
		t.Errorf("tasks that ran after the first one: %d, want %d", n, waiters)
	}
	if len(turns.running) != 0 {
		t.Errorf("keys that are remembered: %d, want 0", len(turns.running))
	}
}

// A task that is canceled while it waits does not take its turn.
func TestTurnsCanceled(t *testing.T) {
	var turns Turns[int]
	first, err := turns.Begin(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := turns.Begin(ctx, 1)
		result <- err
	}()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled task: got %v, want %v", err, context.Canceled)
	}
	first()
	next, err := turns.Begin(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	next()
}
