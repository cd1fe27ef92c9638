package csi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/artifactfs/artifactfs/container/volume"
	"github.com/artifactfs/artifactfs/control"
)

// node makes volumes available to the pods of one node.
type node struct {
	csi.UnimplementedNodeServer
	Config
	records *records
	seen    chan seen // contains one element, except while a request uses it

	mu sync.Mutex
	// hash of the secrets with which each volume was mounted, by the id of the volume
	tokens map[string][sha256.Size]byte
}

// newNode returns a node that stores its volumes in r.
func newNode(c Config, r *records) *node {
	n := &node{Config: c, records: r, seen: make(chan seen, 1)}
	n.seen <- seen{}
	return n
}

// enter checks that a request names a volume and a path, and that no other request for the volume is in progress. kind
// is the kind of the path, for errors. The caller must call the function leave.
func (n *node) enter(id, kind, path string) (leave func(), err error) {
	switch {
	case id == "":
		return nil, invalid("id of the volume is missing")
	case path == "":
		return nil, invalid("%s path is missing", kind)
	}
	return n.records.enter(id)
}

func (n *node) NodeStageVolume(ctx context.Context,
	r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if err := checkCapability(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	leave, err := n.enter(r.GetVolumeId(), "staging", r.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	defer leave()
	rec, err := newRecord(r.GetVolumeId(), r.GetStagingTargetPath(), r.GetVolumeCapability(), r.GetVolumeContext())
	if err != nil {
		return nil, err
	}
	rec.Persistent = true
	if rec.Attributes[attributeSession] == "" {
		rec.Attributes[attributeSession] = r.GetVolumeId()
	}
	v, err := rec.volume(r.GetSecrets())
	if err != nil {
		return nil, invalid("%v", err)
	}
	if err := checkPersistent(v); err != nil {
		return nil, err
	}
	if err := n.mount(ctx, rec, v); err != nil {
		return nil, failure(err)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n *node) NodeUnstageVolume(ctx context.Context,
	r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	leave, err := n.enter(r.GetVolumeId(), "staging", r.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := n.release(ctx, r.GetVolumeId(), r.GetStagingTargetPath()); err != nil {
		return nil, failure(err)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (n *node) NodePublishVolume(ctx context.Context,
	r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := checkCapability(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	leave, err := n.enter(r.GetVolumeId(), "target", r.GetTargetPath())
	if err != nil {
		return nil, err
	}
	defer leave()
	if r.GetVolumeContext()[metaPrefix+"ephemeral"] == "true" {
		err = n.publishEphemeral(ctx, r)
	} else {
		err = n.publishPersistent(ctx, r)
	}
	if err != nil {
		return nil, failure(err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// publishEphemeral mounts a volume of one pod.
func (n *node) publishEphemeral(ctx context.Context, r *csi.NodePublishVolumeRequest) error {
	rec, err := newRecord(r.GetVolumeId(), r.GetTargetPath(), r.GetVolumeCapability(), r.GetVolumeContext())
	if err != nil {
		return err
	}
	rec.ReadOnly = rec.ReadOnly || r.GetReadonly()
	rec.Targets = []string{rec.Dir}
	rec.Names["node"], rec.Names["volume"] = n.Node, nameOfVolume(r.GetTargetPath())
	if rec.Attributes[attributeSession] == "" && !rec.ReadOnly && rec.Attributes["readOnly"] != "true" {
		rec.Attributes[attributeSession] = sessionOf(rec.Names)
	}
	v, err := rec.volume(r.GetSecrets())
	if err != nil {
		return invalid("%v", err)
	}
	if err := checkEphemeral(v); err != nil {
		return err
	}
	return n.mount(ctx, rec, v)
}

// publishPersistent makes a staged volume visible to a pod.
func (n *node) publishPersistent(ctx context.Context, r *csi.NodePublishVolumeRequest) error {
	if r.GetStagingTargetPath() == "" {
		return status.Error(codes.FailedPrecondition,
			"staging path is missing: a persistent volume is staged before it is published")
	}
	rec, err := n.records.load(ofNode, r.GetVolumeId())
	if err != nil {
		return err
	}
	if rec == nil || rec.Dir != r.GetStagingTargetPath() {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not staged at %s", r.GetVolumeId(),
			r.GetStagingTargetPath())
	}
	v, err := rec.volume(r.GetSecrets())
	if err != nil {
		return invalid("%v", err)
	}
	if err := n.mount(ctx, rec, v); err != nil { // mount the volume again, if its mount has died
		return err
	}
	if !slices.Contains(rec.Targets, r.GetTargetPath()) {
		single :=
			r.GetVolumeCapability().GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		if single && len(rec.Targets) > 0 {
			return status.Errorf(codes.FailedPrecondition, "volume %s is published at %s, and its access mode permits one pod",
				rec.ID, rec.Targets[0])
		}
		rec.Targets = append(rec.Targets, r.GetTargetPath())
		if err := n.records.save(ofNode, rec); err != nil {
			return err
		}
	}
	d, err := n.daemon(ctx)
	if err != nil {
		return err
	}
	second := control.MountRequest{Second: rec.Dir, Dir: r.GetTargetPath(), ReadOnly: r.GetReadonly()}
	_, err = d.Mount(ctx, second, func(control.Progress) {})
	return err
}

func (n *node) NodeUnpublishVolume(ctx context.Context,
	r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	leave, err := n.enter(r.GetVolumeId(), "target", r.GetTargetPath())
	if err != nil {
		return nil, err
	}
	defer leave()
	if err := n.unpublish(ctx, r.GetVolumeId(), r.GetTargetPath()); err != nil {
		return nil, failure(err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// unpublish removes the bind mount of a persistent volume, or the mount of an ephemeral one, and then the directory
// target.
func (n *node) unpublish(ctx context.Context, id, target string) error {
	rec, err := n.records.load(ofNode, id)
	if err != nil {
		return err
	}
	if rec != nil && !rec.Persistent {
		if err := n.release(ctx, id, target); err != nil {
			return err
		}
	}
	d, err := n.daemon(ctx)
	if err != nil {
		return err
	}
	if _, err := d.Unmount(ctx, control.UnmountRequest{Dir: target, RemoveDir: true}); err != nil {
		return err
	}
	if rec == nil || !rec.Persistent {
		return nil
	}
	rec.Targets = slices.DeleteFunc(rec.Targets, func(t string) bool { return t == target })
	return n.records.save(ofNode, rec)
}

// mount mounts a volume, unless it is mounted already, and saves its record. If the volume is mounted already, mount
// only sets new tokens.
func (n *node) mount(ctx context.Context, rec *record, v volume.Volume) error {
	old, err := n.records.load(ofNode, rec.ID)
	if err != nil {
		return err
	}
	d, err := n.daemon(ctx)
	if err != nil {
		return err
	}
	mounts, err := d.Mounts(ctx, control.MountsRequest{Names: true})
	if err != nil {
		return err
	}
	if old != nil && old.Dir != rec.Dir && served(mounts, old.Dir) != nil {
		return status.Errorf(codes.AlreadyExists, "volume %s is mounted at another path", rec.ID)
	}
	if m := served(mounts, rec.Dir); m != nil && old != nil {
		if !old.same(rec) {
			return status.Errorf(codes.AlreadyExists, "volume %s is mounted with other attributes", rec.ID)
		}
		return n.renew(ctx, d, rec, v)
	}
	// The record exists before the mount, so that a volume that is mounted can always be found and unmounted.
	if err := n.records.save(ofNode, rec); err != nil {
		return err
	}
	r := v.Request
	r.Dir, r.Via = rec.Dir, cmp.Or(r.Via, n.Via)
	if _, err := d.Mount(ctx, r, func(control.Progress) {}); err != nil {
		if old == nil {
			if gone := n.records.remove(ofNode, rec.ID); gone != nil {
				n.Log.Warn("remove record of a volume that was not mounted", zap.Error(gone))
			}
		}
		return err
	}
	n.remember(rec.ID, v)
	return nil
}

// renew sets the tokens of a mounted volume, if they have changed. Kubernetes publishes a volume again at intervals
// (requiresRepublish), with the secrets as they are then.
func (n *node) renew(ctx context.Context, d Daemon, rec *record, v volume.Volume) error {
	if v.Request.Token == "" && v.Request.SessionToken == "" || n.remembers(rec.ID, v) {
		return nil
	}
	if t := v.Request.Token; t != "" {
		if _, err := d.SetCredential(ctx, control.CredentialRequest{Dir: rec.Dir, Token: t}); err != nil {
			return err
		}
	}
	if t := v.Request.SessionToken; t != "" {
		if _, err := d.SetCredential(ctx, control.CredentialRequest{Dir: rec.Dir, Token: t, Session: true}); err != nil {
			return err
		}
	}
	n.remember(rec.ID, v)
	return nil
}

// sumOf returns a hash of the secrets of a volume.
func sumOf(v volume.Volume) [sha256.Size]byte {
	return sha256.Sum256([]byte(string(v.Request.Token) + "\x00" + string(v.Request.SessionToken)))
}

// remember records the hash of the secrets with which a volume was mounted.
func (n *node) remember(id string, v volume.Volume) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tokens == nil {
		n.tokens = map[string][sha256.Size]byte{}
	}
	n.tokens[id] = sumOf(v)
}

// remembers reports whether the volume was mounted with these secrets.
func (n *node) remembers(id string, v volume.Volume) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tokens[id] == sumOf(v)
}

// release unmounts a volume and removes its record. While the session of the volume must still be pushed, release
// returns an error and changes nothing.
func (n *node) release(ctx context.Context, id, dir string) error {
	rec, err := n.records.load(ofNode, id)
	if err != nil {
		return err
	}
	d, err := n.daemon(ctx)
	if err != nil {
		return err
	}
	v, persistent := volume.Volume{OnDelete: volume.DeleteWaits}, true
	if rec != nil {
		dir, persistent = rec.Dir, rec.Persistent
		parsed, err := rec.volume(nil)
		if err == nil {
			v = parsed
		} else { // another version of the driver may have written the record, so continue with default attributes
			n.Log.Warn("read attributes of a volume", zap.String("volume", id), zap.Error(err))
		}
	}
	if err := volume.Release(ctx, d, dir, v, persistent); err != nil {
		return err
	}
	n.mu.Lock()
	delete(n.tokens, id)
	n.mu.Unlock()
	return n.records.remove(ofNode, id)
}

// served returns the mount at dir in a status, or nil if there is none.
func served(s control.Status, dir string) *control.MountStatus {
	for i := range s.Mounts {
		if s.Mounts[i].Dir == dir && s.Mounts[i].State != control.StateFailed {
			return &s.Mounts[i]
		}
	}
	return nil
}

// nameOfVolume returns the name of a volume in the pod, from the path of the kubelet:
// .../volumes/kubernetes.io~csi/NAME/mount.
func nameOfVolume(target string) string {
	if filepath.Base(target) == "mount" {
		return filepath.Base(filepath.Dir(target))
	}
	return filepath.Base(target)
}

// maxName is the maximum length of the name of a session in bytes.
const maxName = 128

// sessionOf returns the default name of the session of an ephemeral volume. It depends on the name of the pod, so a pod
// that is created again with the same name, such as one of a stateful set, resumes its session.
func sessionOf(names volume.Names) string {
	var parts []string
	for _, name := range []string{"namespace", "pod", "volume"} {
		if names[name] != "" {
			parts = append(parts, names[name])
		}
	}
	name := strings.Join(parts, "-")
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(name))
		name = name[:maxName-17] + "-" + hex.EncodeToString(sum[:8])
	}
	return name
}
