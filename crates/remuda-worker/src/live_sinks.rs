//! Where services put previews and reports of running attempts.

use crate::live_reports::LiveReports;
use crate::plane_link::PlaneLink;
use crate::previews::Previews;

#[derive(Clone, Debug, Default)]
pub(crate) struct LiveSinks {
    pub(crate) previews: Previews,
    pub(crate) reports: LiveReports,
}

impl LiveSinks {
    /// Sends over this link from now on; before the worker has joined there is none.
    pub(crate) fn set_link(&self, link: &PlaneLink) {
        self.previews.set_link(link.clone());
        self.reports.set_link(link.clone());
    }
}
