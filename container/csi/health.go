package csi

import (
	"context"
	"math"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/artifactfs/artifactfs/control"
)

// problem is a condition of a volume that the platform shows as abnormal.
type problem struct {
	kind            csi.VolumeHealthErrorType
	reason, message string
}

// problemsOf returns the abnormal conditions of a volume. m is nil if no process serves its mount.
func problemsOf(m *control.MountStatus) (all []problem) {
	if m == nil {
		return []problem{{csi.VolumeHealthErrorType_INACCESSIBLE, "NotMounted",
			"no process serves the mount; delete the pod, so that the volume is mounted again"}}
	}
	if m.State == control.StateDegraded {
		all = append(all, problem{csi.VolumeHealthErrorType_DEGRADED, "RemoteUnreachable",
			"files that were not fetched yet cannot be read: " + m.Error})
	}
	if m.Session.Pending > 0 && m.Session.Error != "" {
		all = append(all, problem{csi.VolumeHealthErrorType_DEGRADED, "SessionNotPushed",
			"changes are only on this node: " + m.Session.Error})
	}
	if m.Session.TakenOverBy != "" {
		all = append(all, problem{csi.VolumeHealthErrorType_DEGRADED, "SessionTakenOver",
			"the session continues on " + m.Session.TakenOverBy + "; changes here are in another lane of it"})
	}
	return all
}

// NodeGetVolumeStats returns how many bytes and inodes the changes in a volume use. The total is that of the disk with
// the state directory.
func (n *node) NodeGetVolumeStats(ctx context.Context,
	r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumePath() == "" {
		return nil, invalid("path of the volume is missing")
	}
	m, err := n.find(ctx, r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	reply := &csi.NodeGetVolumeStatsResponse{}
	var st unix.Statfs_t
	if err := unix.Statfs(n.Volumes, &st); err == nil && m != nil {
		size := st.Bsize
		reply.Usage = []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Used: m.Overlay.Bytes, Available: int64(st.Bavail) * size,
				Total: int64(st.Blocks) * size},
			{Unit: csi.VolumeUsage_INODES, Used: m.Tree.Files, Available: bounded(st.Ffree), Total: bounded(st.Files)},
		}
	}
	addCondition(reply, problemsOf(m))
	return reply, nil
}

// bounded returns n as an int64, at most the largest one.
func bounded(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// Numbers of VolumeCondition, which CSI 1.13 has replaced by NodeGetVolumeHealth, and which kubelets of Kubernetes
// before that use.
const (
	capabilityCondition = 4 // NodeServiceCapability.RPC.VOLUME_CONDITION
	fieldCondition      = 2 // NodeGetVolumeStatsResponse.volume_condition
	fieldAbnormal       = 1 // VolumeCondition.abnormal
	fieldMessage        = 2 // VolumeCondition.message
)

// addCondition adds a VolumeCondition to a reply.
func addCondition(reply *csi.NodeGetVolumeStatsResponse, all []problem) {
	abnormal, message := uint64(0), "mounted"
	if len(all) > 0 {
		abnormal, message = 1, all[0].message
	}
	b := protowire.AppendVarint(protowire.AppendTag(nil, fieldAbnormal, protowire.VarintType), abnormal)
	b = protowire.AppendString(protowire.AppendTag(b, fieldMessage, protowire.BytesType), message)
	field := protowire.AppendBytes(protowire.AppendTag(nil, fieldCondition, protowire.BytesType), b)
	reply.ProtoReflect().SetUnknown(field)
}

// NodeGetVolumeHealth returns the abnormal conditions of a volume.
func (n *node) NodeGetVolumeHealth(ctx context.Context,
	r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	path := r.GetVolumePublishPath()
	if path == "" {
		path = r.GetStagingTargetPath()
	}
	m, err := n.find(ctx, r.GetVolumeId(), path)
	if err != nil {
		return nil, err
	}
	health := &csi.VolumeHealth{VolumeId: r.GetVolumeId()}
	for _, p := range problemsOf(m) {
		health.HealthStatuses = append(health.HealthStatuses,
			&csi.VolumeHealth_VolumeHealthEntry{Status: p.kind, Reason: p.reason, Message: p.message})
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health}, nil
}

// find returns the mount of a volume, or nil if no process serves it. If path is not "", the volume must be visible
// there.
func (n *node) find(ctx context.Context, id, path string) (*control.MountStatus, error) {
	if id == "" {
		return nil, invalid("id of the volume is missing")
	}
	rec, err := n.records.load(ofNode, id)
	if err != nil {
		return nil, failure(err)
	}
	if rec == nil {
		return nil, status.Errorf(codes.NotFound, "volume %s is not on this node", id)
	}
	if path != "" && !rec.has(path) {
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", id, path)
	}
	return n.mountAt(ctx, rec.Dir)
}

// fresh is the maximum age of a status that is used to answer requests about volumes. The kubelet sends a request for
// each volume once a minute, and the daemon counts all mounts for each status. With a new status for each request, the
// time would grow with the square of the number of volumes.
const fresh = 5 * time.Second

// seen is the newest status of the daemon, and the time at which it was requested.
type seen struct {
	status control.Status
	at     time.Time
}

// mountAt returns the mount at dir, or nil if no process serves a mount there.
func (n *node) mountAt(ctx context.Context, dir string) (*control.MountStatus, error) {
	var last seen
	select {
	case last = <-n.seen:
	case <-ctx.Done():
		return nil, failure(ctx.Err())
	}
	defer func() { n.seen <- last }()
	if time.Since(last.at) < fresh {
		if m := served(last.status, dir); m != nil {
			return m, nil
		}
	}
	d, err := n.daemon(ctx)
	if err != nil {
		return nil, failure(err)
	}
	s, err := d.Status(ctx)
	if err != nil {
		return nil, failure(err)
	}
	last = seen{s, time.Now()}
	return served(s, dir), nil
}

func (n *node) NodeGetCapabilities(context.Context,
	*csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	r := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH, capabilityCondition,
	} {
		r.Capabilities = append(r.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.Node, MaxVolumesPerNode: n.MaxVolumes}, nil
}
