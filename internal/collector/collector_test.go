package collector

import (
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// percent returns the present growth of the heap between collections in percent.
func percent() int {
	p := debug.SetGCPercent(100)
	debug.SetGCPercent(p)
	return p
}

func TestHeapGrowsMoreWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer debug.SetGCPercent(debug.SetGCPercent(100))
		want := func(p int) {
			t.Helper()
			synctest.Wait()
			if got := percent(); got != p {
				t.Errorf("the heap grows by %d %%, want %d %%", got, p)
			}
		}
		SetIdle(40)
		want(40)
		first, second := Relax(), Relax()
		want(busyPercent)
		first()
		first() // a second call has no effect
		time.Sleep(2 * linger)
		want(busyPercent)
		SetIdle(50)
		want(busyPercent)
		second()
		want(busyPercent)
		time.Sleep(2 * linger)
		want(50)
	})
}
