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

// ending is held by the goroutine that ends the program.
var ending sync.Mutex

// interrupted is set when the program receives SIGINT or SIGTERM. After that, no measurement starts a daemon.
var interrupted atomic.Bool

var errInterrupted = errors.New("interrupted")

// removals lists functions that remove what a measurement has created outside of the work directory; all is protected
// by mu.
var removals struct {
	mu  sync.Mutex
	all []func() error
}

// whenInterrupted registers a function that is called if the program is interrupted. The function removes what a
// measurement has created, and must tolerate concurrent calls, because the measurement may call it too.
func whenInterrupted(remove func() error) {
	removals.mu.Lock()
	defer removals.mu.Unlock()
	removals.all = append(removals.all, remove)
}

// removeAll calls the functions in removals, starting with the last one.
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

// endWhenInterrupted waits for SIGINT or SIGTERM in another goroutine. When one arrives, it unmounts everything, ends
// all processes, removes the directory work, and exits.
func endWhenInterrupted(work string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		interrupted.Store(true)
		ending.Lock()
		log.Print("interrupted; unmounting")
		for _, pid := range children() {
			syscall.Kill(-pid, syscall.SIGTERM) // also its children, if the process leads a process group
			syscall.Kill(pid, syscall.SIGTERM)
			syscall.Kill(pid, syscall.SIGCONT) // a stopped process cannot handle SIGTERM before it continues
		}
		endDaemons(work)
		removeAll()
		endDaemons(work) // a daemon that was starting before may run now
		os.RemoveAll(work)
		os.Exit(130)
	}()
}

// endDaemons unmounts all mounts below the directory work and ends the daemons that serve them. It logs errors.
func endDaemons(work string) {
	if err := daemons.End(work); err != nil {
		log.Print(err)
	}
}

// children returns the IDs of the child processes of this program: servers, programs that write, and commands.
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
