package csi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// counting is a daemon that counts how often it is asked for its status.
type counting struct {
	Daemon
	mounts []control.MountStatus
	asked  int
}

func (d *counting) Status(context.Context) (control.Status, error) {
	d.asked++
	return control.Status{Mounts: d.mounts}, nil
}

func TestStatsAskOnce(t *testing.T) {
	d := &counting{}
	r := &records{dir: t.TempDir(), busy: map[string]bool{}}
	n := newNode(Config{Volumes: r.dir, Dial: func(context.Context) (Daemon, error) { return d, nil }}, r)
	const volumes = 20
	for i := range volumes {
		dir := fmt.Sprintf("/v%d", i)
		if err := r.save(ofNode, &record{ID: dir, Dir: dir}); err != nil {
			t.Fatal(err)
		}
		d.mounts = append(d.mounts, control.MountStatus{Dir: dir, Overlay: control.OverlayStatus{Bytes: int64(i)}})
	}
	for i := range volumes {
		dir := fmt.Sprintf("/v%d", i)
		reply, err := n.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: dir, VolumePath: dir})
		if err != nil || len(reply.Usage) == 0 || reply.Usage[0].Used != int64(i) {
			t.Fatalf("statistics of volume %d: got %v (%v)", i, reply, err)
		}
	}
	if d.asked != 1 {
		t.Errorf("the daemon was asked %d times for its status, want once", d.asked)
	}
	// A volume that the last status does not contain may have been mounted since.
	if err := r.save(ofNode, &record{ID: "new", Dir: "/new"}); err != nil {
		t.Fatal(err)
	}
	d.mounts = append(d.mounts, control.MountStatus{Dir: "/new"})
	m, err := n.find(t.Context(), "new", "/new")
	if err != nil || m == nil {
		t.Errorf("a volume that was just mounted: got %v (%v), want its mount", m, err)
	}
}

// waiting is a daemon that does not answer.
type waiting struct{ Daemon }

func (waiting) Status(ctx context.Context) (control.Status, error) {
	<-ctx.Done()
	return control.Status{}, ctx.Err()
}

func TestStopDoesNotWaitForTheDaemon(t *testing.T) {
	dir := t.TempDir()
	r := &records{dir: dir}
	if err := r.save(ofNode, &record{ID: "v", Dir: "/v"}); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	c := Config{Name: DefaultName, Node: "n", Socket: dir + "/csi.sock", Volumes: dir, Log: zap.NewNop(),
		Dial: func(context.Context) (Daemon, error) {
			close(asked)
			return waiting{}, nil
		}}
	go func() { ended <- Run(ctx, c) }()
	conn, err := grpc.NewClient("unix://"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go csi.NewNodeClient(conn).NodeGetVolumeStats(t.Context(),
		&csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/v"}, grpc.WaitForReady(true))
	<-asked
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(await.Patience):
		t.Error("the driver waits for a daemon that does not answer")
	}
}

func TestHintsAreForClusters(t *testing.T) {
	err := failure(&control.Error{Kind: control.CodeAuth, Verb: "mount", Object: "URL", Cause: "refused",
		Hint: "set ARTIFACTFS_TOKEN"})
	if text := err.Error(); !strings.Contains(text, "mount URL: refused (check the keys token") ||
		strings.Contains(text, "ARTIFACTFS") {
		t.Errorf("error of a login: got %q, want one that names the Secret", text)
	}
}
