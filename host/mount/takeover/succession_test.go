package takeover

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/artifactfs/artifactfs/host/mount/turns"
)

func TestMountThatThisProcessStartsWaitsForNoTakeover(t *testing.T) {
	s := NewSuccession()
	if s.TakenOver() || s.Turned() != nil {
		t.Error("the mount was taken over")
	}
	if err := s.Await(t.Context()); err != nil {
		t.Error(err)
	}
	s.AwaitOthers(t.Context(), nil)
}

func TestTakeoverIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := SuccessionOf(Handover{}, Inherited{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Await(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("during the takeover: %v", err)
		}
		start := time.Now()
		s.AwaitOthers(t.Context(), nil)
		if waited := time.Since(start); waited != maxTakeoverWait {
			t.Errorf("waited %v for other mounts", waited)
		}
		done := s.CatchUp(t.Context(), turns.New())
		select {
		case <-s.Turned():
			t.Error("the turn has ended before it began")
		default:
		}
		done()
		done()
		<-s.Turned()
		s.End()
		if err := s.Await(t.Context()); err != nil {
			t.Errorf("after the takeover: %v", err)
		}
	})
}
