package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/artifactfs/artifactfs/control"
)

// fake is a Daemon that records requests, and whose mounts are entries of a list.
type fake struct {
	mounts   []control.MountStatus
	sessions []control.SessionInfo
	calls    []string
	fail     map[string]error // errors by the first word of a call
	tokens   []control.Secret
}

func (f *fake) called(format string, args ...any) error {
	call := fmt.Sprintf(format, args...)
	f.calls = append(f.calls, call)
	word, _, _ := strings.Cut(call, " ")
	return f.fail[word]
}

func (f *fake) Status(context.Context) (control.Status, error) {
	return control.Status{Mounts: f.mounts}, f.fail["status"]
}

func (f *fake) Mounts(ctx context.Context, _ control.MountsRequest) (control.Status, error) {
	return f.Status(ctx)
}

func (f *fake) Mount(_ context.Context, r control.MountRequest, _ func(control.Progress)) (control.MountReply, error) {
	if r.Second != "" {
		return control.MountReply{}, f.called("second %s %s %t", r.Second, r.Dir, r.ReadOnly)
	}
	f.tokens = append(f.tokens, r.Token)
	err := f.called("mount %s %s session=%s tenant=%s gid=%d group=%t ro=%t", r.Remote, r.Dir, r.Session, r.Tenant, r.GID,
		r.GroupWrite, r.ReadOnly)
	if err == nil {
		f.mounts = append(f.mounts, control.MountStatus{Dir: r.Dir, State: control.StateMounted, ReadOnly: r.ReadOnly,
			Session: control.SessionStatus{Name: r.Session, SessionRemote: r.SessionOptions.Remote}})
	}
	return control.MountReply{Dir: r.Dir}, err
}

func (f *fake) Unmount(_ context.Context, r control.UnmountRequest) (control.UnmountReply, error) {
	err := f.called("unmount %s discard=%t keep=%t removedir=%t", r.Dir, r.Discard, r.Keep > 0, r.RemoveDir)
	if err != nil {
		return control.UnmountReply{}, err
	}
	n := len(f.mounts)
	f.mounts = slices.DeleteFunc(f.mounts, func(m control.MountStatus) bool { return m.Dir == r.Dir })
	if len(f.mounts) == n && !r.RemoveDir {
		return control.UnmountReply{}, &control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotMounted}
	}
	return control.UnmountReply{Dir: r.Dir}, nil
}

func (f *fake) Checkpoint(_ context.Context, r control.CheckpointRequest,
	_ func(control.Progress)) (control.CheckpointReply, error) {
	return control.CheckpointReply{}, f.called("checkpoint %s sync=%t", r.Dir, r.Sync)
}

func (f *fake) Sync(_ context.Context, r control.SyncRequest, _ func(control.Progress)) (control.SyncReply, error) {
	return control.SyncReply{}, f.called("sync %s", r.Dir)
}

func (f *fake) Sessions(context.Context) (control.SessionsReply, error) {
	return control.SessionsReply{Sessions: f.sessions}, nil
}

func (f *fake) SetCredential(_ context.Context, r control.CredentialRequest) (control.CredentialReply, error) {
	f.tokens = append(f.tokens, r.Token)
	return control.CredentialReply{}, f.called("credential %s session=%t", r.Dir, r.Session)
}

func newTestNode(t *testing.T, f *fake) *node {
	f.fail = map[string]error{}
	dir := filepath.Join(t.TempDir(), "csi")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c := Config{Node: "n1", Volumes: dir, Log: zap.NewNop(), Dial: func(context.Context) (Daemon, error) { return f, nil }}
	return newNode(c, &records{dir: dir, busy: map[string]bool{}})
}

var filesystem = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: "2000"}}

func capability(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessType: filesystem, AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
}

const target = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/work/mount"

func ephemeral(attributes ...string) *csi.NodePublishVolumeRequest {
	given := map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "box",
		"csi.storage.k8s.io/pod.namespace": "team",
		"csi.storage.k8s.io/pod.uid":       "u", "csi.storage.k8s.io/serviceAccount.name": "default",
		"remote": "https://git.example/app.git",
	}
	for i := 0; i < len(attributes); i += 2 {
		given[attributes[i]] = attributes[i+1]
	}
	return &csi.NodePublishVolumeRequest{VolumeId: "csi-1", TargetPath: target, VolumeContext: given,
		VolumeCapability: capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)}
}

func (f *fake) want(t *testing.T, calls ...string) {
	t.Helper()
	if !slices.Equal(f.calls, calls) {
		t.Errorf("requests to the daemon:\ngot  %q\nwant %q", f.calls, calls)
	}
	f.calls = nil
}

func wantCode(t *testing.T, err error, want codes.Code, text string) {
	t.Helper()
	if status.Code(err) != want || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("got error %v, want code %v and text %q", err, want, text)
	}
}

func TestEphemeralVolume(t *testing.T) {
	var f fake
	n, ctx := newTestNode(t, &f), t.Context()
	r := ephemeral("sessionRemote", "https://git.example/s.git")
	r.Secrets = map[string]string{"token": "one"}
	publish := func() {
		t.Helper()
		if _, err := n.NodePublishVolume(ctx, r); err != nil {
			t.Error(err)
		}
	}
	publish()
	f.want(t, "mount https://git.example/app.git "+target+
		" session=team-box-work tenant=team gid=2000 group=true ro=false")
	publish() // again, with the same secrets
	f.want(t)
	r.Secrets["token"] = "two"
	publish()
	f.want(t, "credential "+target+" session=false")
	r.VolumeContext["ref"] = "other"
	_, err := n.NodePublishVolume(ctx, r)
	wantCode(t, err, codes.AlreadyExists, "other attributes")
	delete(r.VolumeContext, "ref")
	if !slices.Equal(f.tokens, []control.Secret{"one", "two"}) {
		t.Error("the tokens that reached the daemon are not those of the secrets")
	}

	// While the session remote does not answer, the volume stays mounted.
	f.fail["checkpoint"] = &control.Error{Kind: control.CodeUnreachable, Cause: "connection refused"}
	unpublish := &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-1", TargetPath: target}
	_, err = n.NodeUnpublishVolume(ctx, unpublish)
	wantCode(t, err, codes.Unavailable, "session team-box-work is not on its session remote yet: connection refused")
	f.want(t, "checkpoint "+target+" sync=true")
	delete(f.fail, "checkpoint")
	for range 2 {
		if _, err := n.NodeUnpublishVolume(ctx, unpublish); err != nil {
			t.Error(err)
		}
	}
	f.want(t, "checkpoint "+target+" sync=true", "unmount "+target+" discard=false keep=true removedir=false",
		"unmount "+target+" discard=false keep=false removedir=true",
		"unmount "+target+" discard=false keep=false removedir=true")
	if left, _ := os.ReadDir(n.Volumes); len(left) > 0 {
		t.Errorf("records of volumes are left: %v", left)
	}
}

func TestSessionOfAnEphemeralVolume(t *testing.T) {
	for _, c := range []struct {
		attributes []string
		readOnly   bool
		mount, end string
	}{
		{nil, false, "session=team-box-work", "discard=true keep=false"}, // no session remote: into the trash
		{nil, true, "session= ", "discard=false keep=false"},
		{[]string{"session", "{serviceAccount}-{uid}-{node}", "sessionRemote", "https://git.example/s.git"}, false,
			"session=default-u-n1", "discard=false keep=true"},
		{[]string{"sessionRemote", "https://git.example/s.git", "onDelete", "discard"}, false, "session=team-box-work",
			"discard=true keep=false"},
	} {
		var f fake
		n := newTestNode(t, &f)
		r := ephemeral(c.attributes...)
		r.Readonly = c.readOnly
		_, err := n.NodePublishVolume(t.Context(), r)
		_, end := n.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-1", TargetPath: target})
		calls := strings.Join(f.calls, "\n")
		if err != nil || end != nil || !strings.Contains(calls, c.mount) || !strings.Contains(calls, c.end) {
			t.Errorf("%v: got %v, %v and requests\n%s\nwant %q and %q", c.attributes, err, end, calls, c.mount, c.end)
		}
	}
	long := sessionOf(map[string]string{"namespace": "n", "pod": strings.Repeat("p", 253), "volume": "v"})
	if err := control.ValidSession(long); err != nil {
		t.Errorf("name of a session: %v", err)
	}
}

// A mount whose daemon and descriptor store have died is mounted again before its volume is deleted, if its session is
// not pushed.
func TestDeadVolumeIsPushed(t *testing.T) {
	var f fake
	n := newTestNode(t, &f)
	if _, err := n.NodePublishVolume(t.Context(), ephemeral("sessionRemote", "https://git.example/s.git")); err != nil {
		t.Fatal(err)
	}
	f.mounts, f.calls = nil, nil
	f.sessions = []control.SessionInfo{{Dir: target,
		SessionStatus: control.SessionStatus{Name: "team-box-work", Pending: 2}}}
	if _, err := n.NodeUnpublishVolume(t.Context(),
		&csi.NodeUnpublishVolumeRequest{VolumeId: "csi-1", TargetPath: target}); err != nil {
		t.Error(err)
	}
	f.want(t, "unmount "+target+" discard=false keep=false removedir=false",
		"mount https://git.example/app.git "+target+" session=team-box-work tenant=team gid=2000 group=true ro=false",
		"checkpoint "+target+" sync=true", "unmount "+target+" discard=false keep=true removedir=false",
		"unmount "+target+" discard=false keep=false removedir=true")
}

func TestRefusedVolumes(t *testing.T) {
	for _, c := range []struct {
		change func(r *csi.NodePublishVolumeRequest)
		code   codes.Code
		text   string
	}{
		{func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["Ref"] = "x" }, codes.InvalidArgument,
			`unknown attribute "Ref"`},
		{func(r *csi.NodePublishVolumeRequest) { r.Secrets = map[string]string{"pass": "x"} }, codes.InvalidArgument,
			"unknown secret"},
		{func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability = capability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
		}, codes.InvalidArgument, "one node at a time"},
		{func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessType =
				&csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: []string{"nfsvers=4"}}}
		}, codes.InvalidArgument, `mount option "nfsvers=4"`},
		{func(r *csi.NodePublishVolumeRequest) { delete(r.VolumeContext, "csi.storage.k8s.io/ephemeral") },
			codes.FailedPrecondition, "staging"},
		// The author of a pod may not make the daemon use files of the node.
		{func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["tokenFile"] = "/etc/shadow" }, codes.InvalidArgument,
			"tokenFile is not permitted"},
		{func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["remote"] = "/srv/app.git" }, codes.InvalidArgument,
			"remote is a path"},
		{func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["remote"] = "FILE://localhost/a.git" },
			codes.InvalidArgument, "remote is a path"},
		{func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["sessionRemote"] = "../x" }, codes.InvalidArgument,
			"sessionRemote is a path"},
	} {
		var f fake
		n, r := newTestNode(t, &f), ephemeral()
		c.change(r)
		_, err := n.NodePublishVolume(t.Context(), r)
		wantCode(t, err, c.code, c.text)
		f.want(t)
	}
	var f fake
	n := newTestNode(t, &f)
	f.fail["mount"] = &control.Error{Verb: "mount", Object: "https://git.example/app.git", Kind: control.CodeAuth,
		Cause: "access refused", Hint: "set a token"}
	_, err := n.NodePublishVolume(t.Context(), ephemeral())
	wantCode(t, err, codes.Unauthenticated,
		"mount https://git.example/app.git: access refused (check the keys token and sessionToken")
	if left, _ := os.ReadDir(n.Volumes); len(left) > 0 {
		t.Errorf("records of a volume that was not mounted: %v", left)
	}
	leave, err := n.records.enter("csi-1")
	if err != nil {
		t.Fatal(err)
	}
	_, err = n.NodePublishVolume(t.Context(), ephemeral())
	wantCode(t, err, codes.Aborted, "in progress")
	leave()
	n.Dial = func(context.Context) (Daemon, error) { return nil, errors.New("no route") }
	_, err = n.NodePublishVolume(t.Context(), ephemeral())
	wantCode(t, err, codes.Internal, "no route")
}

func TestHealth(t *testing.T) {
	var f fake
	n := newTestNode(t, &f)
	if _, err := n.NodePublishVolume(t.Context(), ephemeral()); err != nil {
		t.Fatal(err)
	}
	reasons := func() (all []string, condition string) {
		t.Helper()
		h, err := n.NodeGetVolumeHealth(t.Context(),
			&csi.NodeGetVolumeHealthRequest{VolumeId: "csi-1", VolumePublishPath: target})
		s, statsErr := n.NodeGetVolumeStats(t.Context(),
			&csi.NodeGetVolumeStatsRequest{VolumeId: "csi-1", VolumePath: target})
		if err := errors.Join(err, statsErr); err != nil {
			t.Fatal(err)
		}
		for _, p := range h.VolumeHealth.HealthStatuses {
			all = append(all, p.Status.String()+" "+p.Reason)
		}
		return all, string(s.ProtoReflect().GetUnknown())
	}
	if all, condition := reasons(); len(all) > 0 || condition != "\x12\x0b\x08\x00\x12\x07mounted" {
		t.Errorf("healthy volume: got %v and condition %q", all, condition)
	}
	f.mounts[0].State, f.mounts[0].Error = control.StateDegraded, "connection refused"
	f.mounts[0].Session.Pending, f.mounts[0].Session.Error = 3, "permission denied"
	all, condition := reasons()
	if want := []string{"DEGRADED RemoteUnreachable", "DEGRADED SessionNotPushed"}; !slices.Equal(all, want) {
		t.Errorf("got %v, want %v", all, want)
	}
	if !strings.Contains(condition, "\x08\x01") || !strings.Contains(condition, "connection refused") {
		t.Errorf("condition of a degraded volume: got %q", condition)
	}
	f.mounts = nil
	<-n.seen // the status is used for some seconds
	n.seen <- seen{}
	if all, _ := reasons(); !slices.Equal(all, []string{"INACCESSIBLE NotMounted"}) {
		t.Errorf("dead volume: got %v", all)
	}
	_, err := n.NodeGetVolumeHealth(t.Context(),
		&csi.NodeGetVolumeHealthRequest{VolumeId: "csi-1", VolumePublishPath: "/other"})
	wantCode(t, err, codes.NotFound, "is not at /other")
}

// Kubernetes and external-provisioner add attributes to those that users have written.
func TestAddedAttributes(t *testing.T) {
	attributes, names := split(map[string]string{"remote": "https://git.example/app.git",
		"csi.storage.k8s.io/pvc/name":  "claim",
		"csi.storage.k8s.io/ephemeral": "false", "storage.kubernetes.io/csiProvisionerIdentity": "1-2-csi.artifactfs"})
	if len(attributes) != 1 || attributes["remote"] == "" || len(names) != 1 || names["pvc"] != "claim" {
		t.Errorf("got the attributes %v and the names %v", attributes, names)
	}
}
