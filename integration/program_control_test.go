package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// A program that uses only package control can start a daemon, mount, and use the session.
func TestProgramStartsADaemonAndMounts(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("program"))
	remote, dir := w.serve(gittest.ServerOptions{}).URL("r.git"), w.place("m")
	client, err := control.Ensure(t.Context(), control.Launch{State: w.state, Executable: binary})
	if err != nil {
		t.Fatal(err)
	}
	m, err := client.Mount(t.Context(), control.MountRequest{Remote: remote, Dir: dir}, nil)
	if err != nil {
		t.Fatalf("mount with all settings at zero: %v", err)
	}
	if err := os.WriteFile(dir+"/new", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := client.Checkpoint(t.Context(), control.CheckpointRequest{Dir: dir, Message: "from a program"}, nil)
	if err != nil || !c.Made || c.Session != m.Session {
		t.Errorf("checkpoint: got %+v, %v, want one of session %s", c, err, m.Session)
	}
	again, err := control.Ensure(t.Context(), control.Launch{State: w.state, Executable: "/none"})
	if err != nil {
		t.Fatalf("ensure a daemon that runs: %v", err)
	}
	if s, err := again.Status(t.Context()); err != nil || len(s.Mounts) != 1 || s.Daemon.Protocol != control.Protocol {
		t.Errorf("status: got %+v, %v, want one mount and protocol %d", s, err, control.Protocol)
	}
	_, err = client.Mount(t.Context(), control.MountRequest{Remote: remote + "-none", Dir: w.place("m")}, nil)
	if got := control.AsError(err).ErrorCode(); got != control.CodeNotFound {
		t.Errorf("mount of a missing repository: got code %q, want %q", got, control.CodeNotFound)
	}
}

// Requests are written as text, as from a client of a later version, with fields that this daemon does not know.
func TestProtocolWithoutALibrary(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("by hand"))
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"))
	ask := func(line string) (answer map[string]json.RawMessage) {
		t.Helper()
		conn, err := net.Dial("unix", control.DaemonSocket(w.state))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintln(conn, line)
		for s := bufio.NewScanner(conn); s.Scan(); {
			answer = nil
			if err := json.Unmarshal(s.Bytes(), &answer); err != nil {
				t.Fatalf("answer %q: %v", s.Text(), err)
			}
		}
		return answer
	}
	a := ask(`{"version":7,"op":"checkpoint","args":{"dir":"` + m.Dir + `","mood":"good"},"trace":1}`)
	if string(a["version"]) != "6" || !strings.Contains(string(a["result"]), `"id":"01`) ||
		string(a["ignored"]) != `["mood"]` {
		t.Errorf("checkpoint asked by a later version: got %s, want a checkpoint in version 6 and the field that was ignored",
			a)
	}
	if a := ask(`{"version":7,"op":"frobnicate","args":{}}`); !strings.Contains(string(a["error"]),
		`"kind":"unsupported"`) {
		t.Errorf("unknown operation: got %s, want an error of kind unsupported", a)
	}
	if a := ask(`{"version":5,"op":"status"}`); string(a["version"]) != "5" ||
		!strings.Contains(string(a["error"]), `"kind":"unsupported"`) {
		t.Errorf("status asked by an older version: got %s, want an error of kind unsupported in version 5", a)
	}
	if a := ask(`{"version":6,"op":"session-log","args":{"of":"none-such"}}`); !strings.Contains(string(a["error"]),
		`"kind":"not-found"`) {
		t.Errorf("log of an unknown session: got %s, want an error of kind not-found", a)
	}
}

// A session on this host is resumed only by the tenant that has started it, and by requests without a tenant.
func TestTenants(t *testing.T) {
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("tenants"))
	remote := w.serve(gittest.ServerOptions{}).URL("r.git")
	client := must[*control.Client](w)(control.Ensure(t.Context(), control.Launch{State: w.state, Executable: binary}))
	mount := func(tenant string, readOnly bool) (string, error) {
		dir := w.place("m-" + tenant)
		_, err := client.Mount(t.Context(), control.MountRequest{Remote: remote, Dir: dir, Session: "work", Tenant: tenant,
			ReadOnly: readOnly}, nil)
		return dir, err
	}
	unmount := func(dir string) {
		t.Helper()
		if _, err := client.Unmount(t.Context(), control.UnmountRequest{Dir: dir}); err != nil {
			t.Error(err)
		}
	}
	dir, err := mount("a", false)
	check(t, err)
	check(t, os.WriteFile(dir+"/new", []byte("of a"), 0o644))
	unmount(dir)
	for _, readOnly := range []bool{false, true} {
		if _, err := mount("b", readOnly); control.AsError(err).ErrorCode() != control.CodePermission {
			t.Errorf("mount by another tenant, read-only %v: got %v, want code %q", readOnly, err, control.CodePermission)
		}
	}
	for _, tenant := range []string{"a", ""} {
		dir, err := mount(tenant, false)
		check(t, err)
		if text, err := os.ReadFile(dir + "/new"); err != nil || string(text) != "of a" {
			t.Errorf("mount by tenant %q: got %q, %v", tenant, text, err)
		}
		unmount(dir)
	}
}
