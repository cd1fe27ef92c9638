package main

import (
	"cmp"
	"encoding/json"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ending is locked by the goroutine that ends the program.
var ending sync.Mutex

// endWhenInterrupted unmounts everything, ends all processes and exits when SIGINT or SIGTERM arrives.
func endWhenInterrupted(work, bin string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		ending.Lock()
		log.Print("interrupted; unmounting")
		for _, pid := range children() {
			syscall.Kill(pid, syscall.SIGTERM)
		}
		for _, below := range []string{"*", "*/*", "*/*/*"} {
			sockets, _ := filepath.Glob(filepath.Join(work, below, "run", "daemon.sock"))
			for _, socket := range sockets {
				endDaemon(bin, filepath.Dir(filepath.Dir(socket)))
			}
		}
		os.RemoveAll(work)
		os.Exit(130)
	}()
}

// endDaemon ends the processes of a state directory, which also ends their mounts.
func endDaemon(bin, state string) {
	var st struct {
		Daemon struct {
			Pid        int `json:"pid"`
			Supervisor int `json:"supervisor"`
		} `json:"daemon"`
	}
	out, err := exec.Command(filepath.Join(bin, "artifactfs"), "status", "--json", "--state", state).Output()
	if err != nil || json.Unmarshal(out, &st) != nil {
		return // no daemon serves this state directory
	}
	pid := cmp.Or(st.Daemon.Supervisor, st.Daemon.Pid)
	syscall.Kill(pid, syscall.SIGTERM)
	for until := time.Now().Add(time.Minute); syscall.Kill(pid, 0) == nil && time.Now().Before(until); {
		time.Sleep(50 * time.Millisecond)
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
