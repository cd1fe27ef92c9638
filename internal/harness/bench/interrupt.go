package main

import (
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/artifactfs/artifactfs/internal/harness/daemons"
)

// ending is locked by the goroutine that ends the program.
var ending sync.Mutex

// endWhenInterrupted unmounts everything, ends all processes and exits when SIGINT or SIGTERM arrives.
func endWhenInterrupted(work string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		ending.Lock()
		log.Print("interrupted; unmounting")
		for _, pid := range children() {
			syscall.Kill(pid, syscall.SIGTERM)
		}
		if err := daemons.End(work); err != nil {
			log.Print(err)
		}
		os.RemoveAll(work)
		os.Exit(130)
	}()
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
