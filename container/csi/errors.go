package csi

import (
	"context"
	"errors"
	"path"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/artifactfs/artifactfs/control"
)

// codeOf maps error codes of the daemon to those of gRPC. All other codes become Internal.
var codeOf = map[control.ErrorCode]codes.Code{
	control.CodeUsage:       codes.InvalidArgument,
	control.CodeAuth:        codes.Unauthenticated,
	control.CodeRefused:     codes.PermissionDenied,
	control.CodeNotFound:    codes.NotFound,
	control.CodeNotMounted:  codes.NotFound,
	control.CodeUnreachable: codes.Unavailable,
	control.CodeTimeout:     codes.DeadlineExceeded,
	control.CodeRateLimited: codes.Unavailable,
	control.CodeConflict:    codes.FailedPrecondition,
	control.CodeBusy:        codes.FailedPrecondition,
	control.CodeUnsynced:    codes.Unavailable,
	control.CodeNoDaemon:    codes.Unavailable,
	control.CodeNoSpace:     codes.ResourceExhausted,
	control.CodeUnsupported: codes.FailedPrecondition,
	control.CodeInterrupted: codes.Aborted,
}

// failure returns the gRPC status of an error. Its text contains the cause and the hint, because users see it in the
// events of a pod.
func failure(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	if errors.Is(err, context.Canceled) {
		return status.Error(codes.Canceled, err.Error())
	}
	if errors.Is(err, control.ErrNoServer) {
		return status.Error(codes.Unavailable, "the daemon of the node does not answer: "+err.Error())
	}
	e := control.AsError(err)
	code, ok := codeOf[e.ErrorCode()]
	if !ok {
		code = codes.Internal
	}
	hint := e.Hint
	// the hint of the daemon does not apply here, because it names flags and variables of the command line
	if e.ErrorCode() == control.CodeAuth {
		hint = "check the keys token and sessionToken of the Secret that nodePublishSecretRef or nodeStageSecretRef names"
	}
	text := e.Error()
	if hint != "" {
		text += " (" + hint + ")"
	}
	return status.Error(code, text)
}

// invalid returns the error for an invalid request.
func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// slow is the duration above which a successful request is logged with level info.
const slow = 500 * time.Millisecond

// logged handles a request and logs it without its contents, which may contain secrets.
func (c *Config) logged(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (any, error) {
	begun := time.Now()
	reply, err := handler(ctx, req)
	fields := []zap.Field{zap.String("call", path.Base(info.FullMethod)), zap.Duration("took", time.Since(begun))}
	if v, ok := req.(interface{ GetVolumeId() string }); ok {
		fields = append(fields, zap.String("volume", v.GetVolumeId()))
	}
	switch {
	case err != nil:
		c.Log.Warn("request failed", append(fields, zap.Error(err))...)
	case time.Since(begun) >= slow:
		c.Log.Info("slow request", fields...)
	default:
		c.Log.Debug("request", fields...)
	}
	return reply, err
}
