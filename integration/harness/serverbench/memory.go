package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// resident returns the proportional set size (PSS) of a process in bytes, in which shared memory is divided among the
// processes that share it.
func resident(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	var total int64
	for line := range strings.Lines(string(text)) {
		var kib int64
		if name, rest, _ := strings.Cut(line, ":"); name == "Pss" {
			fmt.Sscan(rest, &kib)
			total += kib << 10
		}
	}
	return total
}

// family returns the IDs of a process and all its descendants.
func family(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		for _, file := range tasks {
			text, _ := os.ReadFile(file)
			for _, field := range bytes.Fields(text) {
				var child int
				if _, err := fmt.Sscan(string(field), &child); err == nil {
					all = append(all, child)
				}
			}
		}
	}
	return all
}

// peak measures the memory of a process and its descendants until ctx ends, and then sends the maximum in bytes. It
// sends 0 if pid is 0.
func peak(ctx context.Context, pid int) <-chan int64 {
	result := make(chan int64, 1)
	go func() {
		var most int64
		for ctx.Err() == nil && pid != 0 {
			var now int64
			for _, p := range family(pid) {
				now += resident(p)
			}
			most = max(most, now)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		result <- most
	}()
	return result
}

func mib(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// usage is the disk space that a directory needs.
type usage struct {
	bytes   int64 // bytes of the blocks of all files and directories
	objects int64 // bytes of packs and loose objects in this sum; a file with several links counts once
	cache   int64 // bytes of replicas in this sum; a server creates a replica again when it needs it
}

// diskUsage returns the disk space of all files below a directory.
func diskUsage(dir string) (usage, error) {
	var u usage
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil
			}
			return err
		}
		info, err := d.Info()
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		if seen[st.Ino] {
			return nil
		}
		seen[st.Ino] = true
		u.bytes += st.Blocks * 512
		if strings.HasPrefix(path, filepath.Join(dir, "replicas")) {
			u.cache += st.Blocks * 512
		}
		if d.Type().IsRegular() && (strings.HasPrefix(d.Name(), "pack-") || strings.Contains(path, "/objects/")) {
			u.objects += st.Blocks * 512
		}
		return nil
	})
	return u, err
}
