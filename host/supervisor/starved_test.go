package supervisor

import (
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/keeper"
)

// watched is a supervisor whose worker sends no watchdog messages. The test controls the clock and the measured waiting
// time.
type watched struct {
	supervisor
	now  time.Time
	part float64 // fraction of each tick during which the worker waits for a processor
}

func (w *watched) starved(_ int, passed time.Duration) time.Duration {
	return time.Duration(w.part * float64(passed))
}

func newWatched(t *testing.T, limit time.Duration) *watched {
	t.Helper()
	w := &watched{now: time.Unix(1_000_000, 0)}
	w.Log, w.Watchdog, w.meter, w.store, w.lastTick = zap.NewNop(), limit, w, store{}, w.now
	w.serve(t)
	return w
}

// serve makes a new worker the worker that serves.
func (w *watched) serve(t *testing.T) {
	t.Helper()
	conn, peer, err := keeper.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); peer.Close() })
	w.worker = &worker{conn: conn, orderedAt: w.now, readyAt: w.now}
}

// replacedAfter advances the clock until the worker is killed, and returns the elapsed time. It returns limit if the
// worker is still alive at that time.
func (w *watched) replacedAfter(limit time.Duration) time.Duration {
	began := w.now
	for w.worker.killed == "" && w.now.Sub(began) < limit {
		w.now = w.now.Add(tick)
		w.beat(w.now, tick)
	}
	return w.now.Sub(began)
}

func TestSilentWorkerIsReplaced(t *testing.T) {
	for _, c := range []struct {
		name string
		part float64
		want time.Duration
	}{
		{"on a quiet host", 0, 3 * time.Second},
		{"that half starves", 0.5, 5 * time.Second},
		{"that starves", 1, 3 * starvedFactor * time.Second},
	} {
		w := newWatched(t, 3*time.Second)
		w.part = c.part
		if got := w.replacedAfter(10 * time.Minute); got != c.want {
			t.Errorf("silent worker %s: killed after %v, want %v", c.name, got, c.want)
		}
	}
}

// TestStarvedWorkerIsKept checks that a worker is not killed if it could not run for some time because other processes
// used the processors.
func TestStarvedWorkerIsKept(t *testing.T) {
	w := newWatched(t, 3*time.Second)
	for range 5 {
		w.part = 1
		if w.replacedAfter(20 * time.Second); w.worker.killed != "" {
			t.Fatalf("starved worker: killed since %s, want it kept", w.worker.killed)
		}
		w.message(w.worker, keeper.Message{keeper.Watchdog: "1"}, nil)
	}
}

// TestWorkerThatComesUp checks that the time limit for a worker that does not serve yet is readyTime and not the limit
// of the watchdog.
func TestWorkerThatComesUp(t *testing.T) {
	w := newWatched(t, 3*time.Second)
	w.worker.readyAt = time.Time{}
	if got := w.replacedAfter(10 * time.Minute); got != readyTime {
		t.Errorf("worker that does not get ready: killed after %v, want %v", got, readyTime)
	}
	w.serve(t)
	w.worker.readyAt, w.part, w.failures.hung = time.Time{}, 1, 0
	if got := w.replacedAfter(5 * time.Minute); w.worker.killed != "" {
		t.Errorf("starved worker that does not get ready: killed after %v, want it kept", got)
	}
}

// TestLimitsGrow checks that the time limits double with each worker that the watchdog kills, up to a maximum, and are
// reset when a worker has served for some time.
func TestLimitsGrow(t *testing.T) {
	w := newWatched(t, 3*time.Second)
	for _, want := range []time.Duration{3, 6, 12, 24, 48, 48} {
		if got := w.replacedAfter(10 * time.Minute); got != want*time.Second {
			t.Errorf("silent worker after %d others: killed after %v, want %v", w.failures.hung-1, got, want*time.Second)
		}
		if !w.worker.hung {
			t.Error("the worker does not count as one that the watchdog has killed")
		}
		w.serve(t)
	}
	for range 2 * calmTime / tick {
		w.replacedAfter(tick)
		w.message(w.worker, keeper.Message{keeper.Watchdog: "1"}, nil)
	}
	if got := w.replacedAfter(10 * time.Minute); got != 3*time.Second {
		t.Errorf("silent worker after a minute of service: killed after %v, want 3s", got)
	}
}

// TestHungWorkersAreNotCounted checks that the supervisor does not end because of workers that the watchdog kills
// before they serve.
func TestHungWorkersAreNotCounted(t *testing.T) {
	w := newWatched(t, 3*time.Second)
	w.begun, w.served, w.manager, w.program.path = true, true, nil, "/nonexistent"
	for range 2 * giveUpAfter {
		w.worker.readyAt = time.Time{}
		w.replacedAfter(time.Hour)
		if _, end := w.ended(w.worker); end {
			t.Fatal("a worker that hangs before it serves ended the daemon")
		}
		if w.failures.unserved > 1 { // starting /nonexistent fails once
			t.Fatalf("failures after workers that hang: got %d, want none of them counted", w.failures.unserved)
		}
		w.failures.unserved, w.timers.pause = 0, nil
		w.serve(t)
	}
}

// TestThreads checks that waiting time is measured for a thread that other threads keep from its processor, and not for
// a thread that is stopped or sleeps.
func TestThreads(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	start := func(script string) int {
		cmd := exec.Command("sh", "-c", script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		if err := unix.SchedSetaffinity(cmd.Process.Pid, &one); err != nil {
			t.Fatal(err)
		}
		return cmd.Process.Pid
	}
	const spin = "while :; do :; done"
	for range 3 {
		start(spin)
	}
	starving, stopped, asleep := start(spin), start(spin), start("exec sleep 1000")
	if err := unix.Setpriority(unix.PRIO_PROCESS, starving, 19); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// The first measurement may include waiting time from before the process was stopped or slept, so a later one is
	// used.
	during := func(pid int, enough func(starved, passed time.Duration) bool) (starved, passed time.Duration) {
		m := &threads{}
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
			m.starved(pid, 0)
			begun := time.Now()
			time.Sleep(200 * time.Millisecond)
			passed = time.Since(begun)
			if starved = m.starved(pid, passed); enough(starved, passed) {
				break
			}
		}
		return starved, passed
	}
	most := func(starved, passed time.Duration) bool { return starved > passed/2 }
	none := func(starved, _ time.Duration) bool { return starved == 0 }
	if starved, passed := during(starving, most); !most(starved, passed) {
		t.Errorf("process that others keep from its processor: starved %v of %v, want most of it", starved, passed)
	}
	for what, pid := range map[string]int{"stopped": stopped, "asleep": asleep} {
		if starved, passed := during(pid, none); !none(starved, passed) {
			t.Errorf("process that is %s: starved %v of %v, want nothing", what, starved, passed)
		}
	}
	if starved := (&threads{}).starved(1<<30, time.Second); starved != 0 {
		t.Errorf("process that does not exist: starved %v, want nothing", starved)
	}
}
