package clock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if !Wait(t.Context(), time.Hour) || time.Since(begin) != time.Hour {
			t.Errorf("wait of an hour: got %v, want true after that time", time.Since(begin))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin = time.Now()
		if Wait(ctx, time.Hour) || time.Since(begin) != time.Minute {
			t.Errorf("wait with a context that ends after a minute: got %v, want false after that time", time.Since(begin))
		}
	})
}
