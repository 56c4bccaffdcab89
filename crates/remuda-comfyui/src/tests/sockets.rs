//! The socket against a scripted server.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message as Frame;

use super::PATIENCE;
use crate::{ComfyuiMessage, ComfyuiSocket, ComfyuiTarget, SocketClosed};

/// A socket to a server that waits for our feature flags, sends these frames and closes.
async fn connect(frames: Vec<Frame>) -> ComfyuiSocket {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = ComfyuiTarget::new(format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        let first = socket.next().await.unwrap().unwrap().into_text().unwrap();
        assert!(first.contains("feature_flags") && first.contains("supports_preview_metadata"), "{first}");
        for frame in frames {
            socket.feed(frame).await.unwrap();
        }
        socket.close(None).await.unwrap();
        while socket.next().await.is_some_and(|frame| frame.is_ok()) {}
    });
    ComfyuiSocket::connect(&target, "agent 1/&", PATIENCE).await.unwrap()
}

/// All messages, the reason for the close, and the number of dropped previews.
async fn receive_all(mut socket: ComfyuiSocket) -> (Vec<ComfyuiMessage>, SocketClosed, u32) {
    let mut messages = Vec::new();
    loop {
        match tokio::time::timeout(Duration::from_secs(30), socket.recv_message()).await.unwrap() {
            Ok(message) => messages.push(message),
            Err(closed) => return (messages, closed, socket.dropped()),
        }
    }
}

fn picture(format: u8, bytes: usize) -> Frame {
    let mut frame = vec![0, 0, 0, 1, 0, 0, 0, format];
    frame.resize(8 + bytes, 7);
    Frame::binary(frame)
}

#[tokio::test]
async fn large_results_are_received_and_large_previews_dropped() {
    let (jpeg, png) = (1, 2);
    let frames = vec![picture(jpeg, 5 << 20), picture(png, 5 << 20), picture(jpeg, 100)];
    let (messages, closed, dropped) = receive_all(connect(frames).await).await;
    let sizes = messages.iter().map(|message| match message {
        ComfyuiMessage::Preview { bytes, .. } => bytes.len(),
        other => panic!("{other:?}"),
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [5 << 20, 100]);
    assert_eq!(dropped, 1);
    assert!(matches!(closed, SocketClosed::ByServer(_)), "{closed}");
}

#[tokio::test]
async fn oversized_frame_closes_the_socket() {
    let (messages, closed, _) = receive_all(connect(vec![picture(2, 65 << 20), picture(2, 1)]).await).await;
    assert!(messages.is_empty());
    assert_eq!(closed, SocketClosed::TooLarge);
}

#[tokio::test]
async fn socket_closes_after_repeated_malformed_messages() {
    let malformed = |times| vec![Frame::text("{\"type\": 3}"); times];
    let (messages, closed, _) = receive_all(connect(malformed(19)).await).await;
    assert_eq!(messages.iter().filter(|message| matches!(message, ComfyuiMessage::Malformed)).count(), 19);
    assert!(matches!(closed, SocketClosed::ByServer(_)), "{closed}");
    let (_, closed, _) = receive_all(connect(malformed(30)).await).await;
    assert_eq!(closed, SocketClosed::Malformed);
}
