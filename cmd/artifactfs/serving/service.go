package serving

import (
	"context"
	"os/exec"
	"path"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/proc"
)

// askTime is the timeout for systemctl.
const askTime = 3 * time.Second

// isRestarted reports whether the service manager stops this service in order to start it again. In that case the new
// process receives the stored descriptors. A stop signal does not contain the reason, so isRestarted asks the manager
// for the job of this unit.
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

// UnitOf returns the service to which a process belongs, from its control groups: systemd creates a control group for
// each service. It returns "" if the process belongs to no service. The result user reports whether the service belongs
// to a user's manager.
func UnitOf(groups []proc.Cgroup) (unit string, user bool) {
	for _, g := range groups {
		if g.Controllers != "" && g.Controllers != "name=systemd" {
			continue
		}
		for at := g.Path; at != "/" && at != "." && at != ""; at = path.Dir(at) {
			if strings.HasSuffix(at, ".service") {
				// The user's manager is itself a service, and the user's services are below it.
				return path.Base(at), strings.Contains(path.Dir(at), "/user@")
			}
		}
	}
	return "", false
}

// HasRestart reports whether jobs, the output of the command "systemctl list-jobs", contains a restart of unit. Each
// line of the output has a number, a unit, a type and a state.
func HasRestart(jobs, unit string) bool {
	for line := range strings.Lines(jobs) {
		fields := strings.Fields(line)
		if len(fields) >= 3 && fields[1] == unit && (fields[2] == "restart" || fields[2] == "try-restart") {
			return true
		}
	}
	return false
}
