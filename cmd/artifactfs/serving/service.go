package serving

import (
	"context"
	"os/exec"
	"path"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// askTime is how long the service manager may take to say what it does with us.
const askTime = 3 * time.Second

// isRestarted says whether the service manager ends us to start us anew: then it gives back what it keeps for us. It tells
// services nothing but to end, so it is asked for the job that it has for our unit.
func isRestarted() bool {
	groups, err := proc.Self.Cgroups()
	if err != nil {
		return false
	}
	unit, user := UnitOf(groups)
	if unit == "" {
		return false
	}
	args := []string{"list-jobs", "--no-legend", "--no-pager", "--full", unit}
	if user {
		args = append([]string{"--user"}, args...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.Dir = "/"
	out, err := cmd.Output()
	return err == nil && HasRestart(string(out), unit)
}

// UnitOf returns the service that a process belongs to, by its control groups, of which systemd makes one for each service; "" if
// there is none. user reports that it is a service of a user's manager.
func UnitOf(groups []proc.Cgroup) (unit string, user bool) {
	for _, g := range groups {
		if g.Controllers != "" && g.Controllers != "name=systemd" {
			continue
		}
		for at := g.Path; at != "/" && at != "." && at != ""; at = path.Dir(at) {
			if strings.HasSuffix(at, ".service") {
				// The user's manager is a service itself, below which the user's services are.
				return path.Base(at), strings.Contains(path.Dir(at), "/user@")
			}
		}
	}
	return "", false
}

// HasRestart reads what list-jobs prints: lines of number, unit, type and state.
func HasRestart(jobs, unit string) bool {
	for line := range strings.Lines(jobs) {
		fields := strings.Fields(line)
		if len(fields) >= 3 && fields[1] == unit && (fields[2] == "restart" || fields[2] == "try-restart") {
			return true
		}
	}
	return false
}
