package memlimit

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/internal/proc"
)

func TestLimitsOfGroups(t *testing.T) {
	const none = math.MaxInt64
	for _, test := range []struct {
		name   string
		files  map[string]string
		mount  mountinfo.Mount // Point is relative to the directory of the test
		groups string          // contents of /proc/self/cgroup
		want   int64
	}{
		{"version 1", map[string]string{"m/pod/memory.limit_in_bytes": "1073741824\n"},
			mountinfo.Mount{Type: "cgroup", Root: "/", Point: "m", Super: []string{"rw", "memory"}},
			"4:cpu:/\n3:memory:/pod\n", 1 << 30},
		{"group above", map[string]string{"m/a/memory.limit_in_bytes": "5000\n",
			"m/a/b/c/memory.limit_in_bytes": "9223372036854771712\n"},
			mountinfo.Mount{Type: "cgroup", Root: "/", Point: "m", Super: []string{"memory"}}, "3:memory:/a/b/c\n", 5000},
		{"several controllers", map[string]string{"m/a/memory.limit_in_bytes": "5000\n"},
			mountinfo.Mount{Type: "cgroup", Root: "/", Point: "m", Super: []string{"cpu", "memory"}}, "3:cpu,memory:/a\n", 5000},
		{"another hierarchy", map[string]string{"m/a/memory.limit_in_bytes": "5000\n"},
			mountinfo.Mount{Type: "cgroup", Root: "/", Point: "m", Super: []string{"cpu"}}, "3:cpu:/a\n", none},
		{"version 2", map[string]string{"m/pod/memory.max": "4096\n", "m/memory.max": "max\n"},
			mountinfo.Mount{Type: "cgroup2", Root: "/", Point: "m"}, "0::/pod\n", 4096},
		{"version 2, slowed down", map[string]string{"m/pod/memory.max": "4096\n", "m/pod/memory.high": "2048\n"},
			mountinfo.Mount{Type: "cgroup2", Root: "/", Point: "m"}, "0::/pod\n", 2048},
		{"namespace of groups", map[string]string{"m/memory.max": "4096\n"},
			mountinfo.Mount{Type: "cgroup2", Root: "/", Point: "m"}, "0::/\n", 4096},
		{"only the own group is mounted", map[string]string{"m/memory.limit_in_bytes": "4096\n"},
			mountinfo.Mount{Type: "cgroup", Root: "/docker/1", Point: "m", Super: []string{"memory"}},
			"3:memory:/docker/1\n", 4096},
		{"no limit", map[string]string{"m/pod/memory.max": "max\n"},
			mountinfo.Mount{Type: "cgroup2", Root: "/", Point: "m"}, "0::/pod\n", none},
	} {
		dir := t.TempDir()
		for name, text := range test.files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		test.mount.Point = filepath.Join(dir, test.mount.Point)
		if got := ofGroups(proc.ParseCgroups(test.groups), mountinfo.Table{test.mount}); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
	if n := Bytes(); n <= 0 || n == none {
		t.Errorf("memory of this process: got %d", n)
	}
}
