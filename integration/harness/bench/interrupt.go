package main

import (
	"errors"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/artifactfs/artifactfs/integration/harness/daemons"
)

// ending is locked by the goroutine that ends the program.
var ending sync.Mutex

// interrupted is set when the program is interrupted. A measurement that may start daemons in another goroutine then starts no more.
var interrupted atomic.Bool

var errInterrupted = errors.New("interrupted")

// removals contains what a measurement has made outside of the work directory; mu protects all.
var removals struct {
	mu  sync.Mutex
	all []func() error
}

// whenInterrupted registers a function that removes what a measurement has made, in case that the program is interrupted. The measurement
// may call the function as well, also at the same time.
func whenInterrupted(remove func() error) {
	removals.mu.Lock()
	defer removals.mu.Unlock()
	removals.all = append(removals.all, remove)
}

// removeAll calls the registered functions, the last one first.
func removeAll() {
	removals.mu.Lock()
	all := slices.Clone(removals.all)
	removals.mu.Unlock()
	for _, remove := range slices.Backward(all) {
		if err := remove(); err != nil {
			log.Print(err)
		}
	}
}

// endWhenInterrupted unmounts everything, ends all processes and exits when SIGINT or SIGTERM arrives.
func endWhenInterrupted(work string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		interrupted.Store(true)
		ending.Lock()
		log.Print("interrupted; unmounting")
		for _, pid := range children() {
			syscall.Kill(-pid, syscall.SIGTERM) // with its children, if it has a session or a group of its own
			syscall.Kill(pid, syscall.SIGTERM)
			syscall.Kill(pid, syscall.SIGCONT) // a stopped process would not end
		}
		endDaemons(work)
		removeAll()
		endDaemons(work) // those that were starting
		os.RemoveAll(work)
		os.Exit(130)
	}()
}

// endDaemons unmounts everything below a directory, and ends its daemons.
func endDaemons(work string) {
	if err := daemons.End(work); err != nil {
		log.Print(err)
	}
}

// children returns the IDs of the processes that this program has started: servers, programs that write, and commands.
func children() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
